"""Figures and blocks of output in the documents, made by commands: python -m tools.figures."""
