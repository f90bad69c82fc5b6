"""Tasks: the vocabulary's `Task` from files and from the curriculum, its repository on disk, its splits."""
