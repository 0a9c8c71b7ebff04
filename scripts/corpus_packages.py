"""Collects documents out of unpacked Debian packages, as JSON lines for `n prep`.

Usage: corpus_packages.py code|prose UNPACKED_DIR OUT.jsonl SAMPLE.txt

UNPACKED_DIR has a folder for each package, with the package's files as they would be installed. Writes one line
{"id": ..., "text": ...} a document, packages and files in the order of their names, and says how much of what was kept.

code   Go, Rust and Python sources, a document a file.
prose  English: sources of manuals and essays (reStructuredText, pod, Markdown), a document a file; dictionaries and
       WordNet's glosses, a document a run of entries; novels, a document a run of lines.

SAMPLE.txt gets every sixth document's text, for a tokenizer to learn from. What is not UTF-8 is left out and counted. Python's standard library only.
"""

import gzip
import json
import os
import re
import sys

from corpus_austen import read_database

CODE_SUFFIXES = (".go", ".rs", ".py")
PROSE_SUFFIXES = (".rst.txt", ".pod", ".md.gz")
# Other languages than English, and lists that a program wrote.
LEFT_OUT = re.compile(r"/translations/|/perltoc\.pod$|/whatsnew/changelog\.")
SAMPLE_EVERY = 6
# A document made of entries has at least so many characters.
RUN_CHARS = 16_000


def runs_of(entries):
    """Joins entries into documents of RUN_CHARS or a little more."""
    run, size = [], 0
    for entry in entries:
        run.append(entry)
        size += len(entry)
        if size >= RUN_CHARS:
            yield "\n".join(run)
            run, size = [], 0
    if run:
        yield "\n".join(run)


def dictionary(path):
    """The entries of a dictionary in dictd's format: gzip, an entry begins where a line is not indented."""
    with gzip.open(path, "rb") as file:
        data = file.read()
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:  # GCIDE is ASCII but for a few apostrophes
        text = data.decode("cp1252")
    # Marks of the source that end nearly every paragraph of GCIDE.
    text = re.sub(r"\n *\[(1913 Webster|PJC|Webster 1913 Suppl\.|WordNet [0-9.]+)[^\]]*\]", "", text)
    return re.split(r"\n(?=[^\s])", text)


def glosses(path):
    """WordNet's data files: `... words ... | what they mean; "an example"`, a line a sense."""
    with open(path, encoding="utf-8") as file:
        for line in file:
            head, bar, gloss = line.partition(" | ")
            if not bar:
                continue
            fields = head.split(" ")
            words = [fields[4 + 2 * i].replace("_", " ") for i in range(int(fields[3], 16))]
            yield f"{', '.join(words)}: {gloss.strip()}"


def read_text(path):
    opened = gzip.open(path, "rb") if path.endswith(".gz") else open(path, "rb")
    with opened as file:
        return file.read().decode("utf-8")


def documents(kind, path):
    """Yields (part, text) of one file; part is "" where the file is one document."""
    name = os.path.basename(path)
    if kind == "code":
        if name.endswith(CODE_SUFFIXES):
            yield "", read_text(path)
    elif name.endswith(PROSE_SUFFIXES) and not LEFT_OUT.search(path):
        yield "", read_text(path)
    elif name.endswith(".dict.dz"):
        yield from enumerate(runs_of(dictionary(path)))
    elif re.fullmatch(r"data\.(noun|verb|adj|adv)", name):
        yield from enumerate(runs_of(glosses(path)))
    elif name == "Rdata.rdx" and "/janeaustenr/data/" in path:
        for novel, lines in sorted(read_database(os.path.dirname(path)).items()):
            for number, run in enumerate(runs_of(lines)):
                yield f"{novel}-{number}", run


def files_below(folder):
    for root, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            path = os.path.join(root, name)
            if os.path.isfile(path) and not os.path.islink(path):
                yield path


def collect(kind, unpacked, out, sample):
    total = 0
    for package in sorted(os.listdir(unpacked)):
        count = size = skipped = 0
        for path in files_below(os.path.join(unpacked, package)):
            try:
                for part, text in documents(kind, path):
                    name = f"{os.path.relpath(path, unpacked)}{'' if part == '' else f'#{part}'}"
                    out.write(json.dumps({"id": name, "text": text}, ensure_ascii=False) + "\n")
                    if total % SAMPLE_EVERY == 0:
                        sample.write(text + "\n")
                    total += 1
                    count += 1
                    size += len(text.encode())
            except UnicodeDecodeError:
                skipped += 1
        left_out = f", {skipped} files that are not UTF-8 left out" if skipped else ""
        print(f"corpus: {package}: {count} documents, {size / 1e6:.1f} MB{left_out}")


def main():
    if len(sys.argv) != 5 or sys.argv[1] not in ("code", "prose"):
        print("usage: corpus_packages.py code|prose UNPACKED_DIR OUT.jsonl SAMPLE.txt", file=sys.stderr)
        return 2
    kind, unpacked, out, sample = sys.argv[1:]
    try:
        with open(out, "w", encoding="utf-8", newline="\n") as out_file, \
             open(sample, "w", encoding="utf-8", newline="\n") as sample_file:
            collect(kind, unpacked, out_file, sample_file)
    except (OSError, ValueError, LookupError) as error:  # the last two: a package is not laid out as it was
        print(f"corpus: error: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
