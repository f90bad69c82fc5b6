"""Wire format between the host and process 1 of a sandbox.

A frame is HEADER and a body. Fields in a body are length-prefixed.
"""

import _struct as struct

HEADER = struct.Struct("!IBI")  # body length, kind, request id
EXEC = struct.Struct("!dIB")  # timeout s, bytes kept per stream, flags; then fields cwd, argc, argv, env
# exit code, timed out, stdout total, stderr total, seconds, kept stdout bytes; then kept stdout, kept stderr
RESULT = struct.Struct("!iBQQdI")
READ = struct.Struct("!QI")  # offset, size; then path
DATA = struct.Struct("!Q")  # size of the whole file; then the chunk
WRITE = struct.Struct("!QI")  # offset, mode; then fields path, chunk
ENTRY = struct.Struct("!cIQ")  # kind (f, d, l, other ?), mode, size; then fields name, link target
SPACE = struct.Struct("!QQ")  # free bytes and free inodes of the file system that holds a path
LENGTH = struct.Struct("!I")

STDIN_KIND, EXEC_KIND, CANCEL_KIND, READ_KIND, WRITE_KIND, LIST_KIND, MKDIR_KIND, LINK_KIND = range(1, 9)
SPACE_KIND, KILL_KIND = range(9, 11)
CHANGES_KIND = 11  # fields: WRITE, MKDIR and LINK requests, each after its kind as one byte
READ_FILES_KIND = 12  # fields: LENGTH (maximum), path, ...; the reply's fields are contents
STATE_KIND = 13  # fields: paths of mount points; the reply names state besides files, b"": there is none
READY_KIND, RESULT_KIND, DATA_KIND, ERROR_KIND, STDOUT_KIND, STDERR_KIND = range(20, 26)

MERGE_FLAG, LIVE_FLAG = 1, 2  # of EXEC: one pipe for both streams; also send output as it arrives

CHUNK = 1 << 20  # bytes of a file moved per request


def pack(*fields: bytes) -> bytes:
    """Length-prefix and join byte strings."""
    return b"".join(LENGTH.pack(len(field)) + field for field in fields)


def unpack(body: bytes, offset: int = 0) -> list[bytes]:
    """Return the fields of `body` from `offset` on. Raises ValueError, struct.error."""
    fields: list[bytes] = []
    while offset < len(body):
        (size,) = LENGTH.unpack_from(body, offset)
        offset += 4
        if offset + size > len(body):
            raise ValueError("a field runs past its frame")
        fields.append(bytes(body[offset : offset + size]))
        offset += size
    return fields
