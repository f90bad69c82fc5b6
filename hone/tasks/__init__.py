"""Tasks: file formats, data sets, the curriculum, splits, and the repository of a task on disk."""
