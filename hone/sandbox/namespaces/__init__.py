"""The namespaces provider: bubblewrap over kernel overlays, no daemon and no images to pull."""
