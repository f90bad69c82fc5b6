"""Curation: which tasks may be trained on."""
