"""What a configuration costs on a machine that is not here, before one pays for it."""
