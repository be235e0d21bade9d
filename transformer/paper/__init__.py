"""The paper's tables: as printed, measured, and beside a run's results."""
