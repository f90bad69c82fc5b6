"""Operators: each module yields the bugs of one node, by the kind of mistake."""
