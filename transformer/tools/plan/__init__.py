"""What a configuration costs on a machine that is not here, before paying for it."""
