"""Constituency trees: brackets, and the symbols that a decoder writes them with."""
