"""Output for people to look at: plots, tables, pages."""
