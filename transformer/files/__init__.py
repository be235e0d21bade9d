"""Files: whole or not at all, verified before use, read by lines, one holder."""
