"""Tools beside a run: compare, measure, check, plan."""
