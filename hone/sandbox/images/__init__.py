"""Container images without a container engine: fetch, unpack once, share, evict."""

from hone.sandbox.images.records import Image
from hone.sandbox.images.store import ImageStore

__all__ = ["Image", "ImageStore"]
