"""Decodes the novels of the R package janeaustenr without R.

Usage: corpus_austen.py DATA_DIR OUT_DIR

DATA_DIR is the package's data/ folder, which holds an R "lazy-load" database:
  Rdata.rdx  gzip of one serialised R list; its `variables` names every object and gives its
             (offset, length) in the .rdb file
  Rdata.rdb  at each offset: 4 bytes, the big-endian size once unpacked, then a zlib stream that
             holds one serialised object (for a novel: a character vector, one element a line)

Writes OUT_DIR/{train,valid}/NOVEL.txt: UTF-8, every line of the vector followed by a newline.
The serialisation format is that of "R Internals", chapter 1.8; only what such a database of
character vectors can hold is read, anything else is an error.

Python's standard library only, and of that only what Debian's python3-minimal ships.
"""

import hashlib
import os
import struct
import sys
import zlib

# R's object name -> file name. Together they are the whole package.
NOVELS = {
    "emma": "emma",
    "mansfieldpark": "mansfield_park",
    "northangerabbey": "northanger_abbey",
    "persuasion": "persuasion",
    "prideprejudice": "pride_and_prejudice",
    "sensesensibility": "sense_and_sensibility",
}

# Austen's last, about a ninth of the text: large enough to measure, and little is lost to training.
HELD_OUT = "persuasion"

# SHA-256 over the six texts in the order above, as janeaustenr 1.0.0 has them. Losses from other
# texts must not be compared with recorded ones, so a difference is said aloud.
KNOWN_SHA256 = "65b434d16a8755142bfa95ba19c5f9abd0d30cf3dffe3b6793e834f9f56dcc96"


class FormatError(Exception):
    pass


class Unserializer:
    """Reads one object in R's XDR ("X\\n") serialisation, format version 2 or 3.

    Vectors become lists, or dicts if they carry names; NULL and NA become None.
    """

    # Type codes, from R's Rinternals.h and serialize.c.
    SYMBOL, PAIRLIST, CHARSXP = 1, 2, 9
    LOGICAL, INTEGER, REAL, STRING, LIST = 10, 13, 14, 16, 19
    NULL, REFERENCE = 254, 255
    # An item starts with a word: type in bits 0-7, these flags, and from bit 12 on a CHARSXP's
    # encoding. (UTF-8 and ASCII have bits too, but need no telling apart.)
    HAS_ATTRIBUTES, HAS_TAG = 1 << 9, 1 << 10
    BYTES, LATIN1 = 1 << (12 + 1), 1 << (12 + 2)

    def __init__(self, data):
        self.data = data
        self.at = 0
        self.symbols = []  # what REFERENCE counts from 1; only symbols can get there here

    def read(self):
        if self.take(2) != b"X\n":
            raise FormatError("not an XDR-serialised R object")
        version = self.int32()
        self.take(8)  # the R that wrote it, the oldest R that can read it
        if version == 3:
            self.take(self.int32())  # name of the writer's native encoding
        elif version != 2:
            raise FormatError(f"R serialisation version {version} is not known")
        value = self.item()
        if self.at != len(self.data):
            raise FormatError(f"{len(self.data) - self.at} bytes are left after the object")
        return value

    def take(self, count):
        chunk = self.data[self.at : self.at + max(count, 0)]
        if len(chunk) != count:
            raise FormatError(f"{count} bytes wanted at {self.at} of {len(self.data)}")
        self.at += count
        return chunk

    def int32(self):
        return struct.unpack(">i", self.take(4))[0]

    def item(self):
        flags = self.int32()
        kind = flags & 0xFF
        if kind == self.NULL:
            return None
        if kind == self.SYMBOL:
            self.symbols.append(self.item())
            return self.symbols[-1]
        if kind == self.REFERENCE:
            # The index is in the bits above the type, or follows if it is too large for them.
            return self.symbols[(flags >> 8 or self.int32()) - 1]
        if kind == self.CHARSXP:
            return self.string(flags)
        if kind == self.PAIRLIST:
            return self.pairlist(flags)

        if kind == self.REAL:
            count = self.int32()
            value = list(struct.unpack(f">{count}d", self.take(8 * count)))
        elif kind in (self.LOGICAL, self.INTEGER):
            count = self.int32()
            value = list(struct.unpack(f">{count}i", self.take(4 * count)))
        elif kind in (self.STRING, self.LIST):
            value = [self.item() for _ in range(self.int32())]
        else:
            raise FormatError(f"R type {kind} at byte {self.at} is not known to this decoder")
        attributes = self.item() if flags & self.HAS_ATTRIBUTES else {}
        names = attributes.get("names")
        return value if names is None else dict(zip(names, value))

    def pairlist(self, flags):
        """A pairlist, as a dict by tag. It is stored as a chain of cells that ends in NULL."""
        entries = {}
        while flags & 0xFF == self.PAIRLIST:
            if flags & self.HAS_ATTRIBUTES:
                self.item()
            tag = self.item() if flags & self.HAS_TAG else None
            entries[tag] = self.item()
            flags = self.int32()
        if flags & 0xFF != self.NULL:
            raise FormatError(f"a pairlist ends in R type {flags & 0xFF}")
        return entries

    def string(self, flags):
        length = self.int32()
        if length == -1:
            return None  # NA
        if flags & self.BYTES:
            raise FormatError("a string of unknown encoding")
        return self.take(length).decode("latin-1" if flags & self.LATIN1 else "utf-8")


def read_database(data_dir):
    """Returns {name: object} for every object of the database."""
    with open(os.path.join(data_dir, "Rdata.rdx"), "rb") as file:
        # 47: a gzip or a zlib header, whichever is there.
        index = Unserializer(zlib.decompress(file.read(), 47)).read()
    if index["compressed"] != [1]:
        # 2 is bzip2, 3 is xz; janeaustenr has always been zlib.
        raise FormatError(f"compression {index['compressed']} is not known to this decoder")
    with open(os.path.join(data_dir, "Rdata.rdb"), "rb") as file:
        database = file.read()

    objects = {}
    for name, (offset, length) in index["variables"].items():
        entry = database[offset : offset + length]
        data = zlib.decompress(entry[4:])
        if len(entry) != length or len(data) != int.from_bytes(entry[:4], "big"):
            raise FormatError(f"{name}: the database entry has the wrong size")
        objects[name] = Unserializer(data).read()
    return objects


def write_corpus(objects, out_dir):
    if set(objects) != set(NOVELS):
        raise FormatError(f"expected the novels {sorted(NOVELS)}, found {sorted(objects)}")
    digest = hashlib.sha256()
    for name, stem in NOVELS.items():
        part = "valid" if stem == HELD_OUT else "train"
        text = "".join(line + "\n" for line in objects[name]).encode("utf-8")
        digest.update(text)
        os.makedirs(os.path.join(out_dir, part), exist_ok=True)
        with open(os.path.join(out_dir, part, stem + ".txt"), "wb") as file:
            file.write(text)
    if digest.hexdigest() != KNOWN_SHA256:
        print("corpus: warning: these are not the texts of janeaustenr 1.0.0; do not compare "
              "losses with those recorded for them", file=sys.stderr)


def main():
    if len(sys.argv) != 3:
        print("usage: corpus_austen.py DATA_DIR OUT_DIR", file=sys.stderr)
        return 2
    try:
        write_corpus(read_database(sys.argv[1]), sys.argv[2])
    except (FormatError, OSError, zlib.error, struct.error, LookupError, TypeError,
            ValueError) as error:  # the last three: the objects are not what a corpus looks like
        print(f"corpus: error: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
