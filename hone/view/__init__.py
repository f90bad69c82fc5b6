"""What happened in a run, for people: one record per page, shown by `hone view`, `hone show` and exports."""
