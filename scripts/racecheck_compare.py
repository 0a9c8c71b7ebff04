#!/usr/bin/env python3
"""racecheck_compare.py REPORT LIST: fails if a report of compute-sanitizer's racecheck names a race that LIST has not.

A race is known by its kernel and the kinds of the two accesses. Addresses differ from build to build, so LIST says how
many different places one instance of the kernel may have; more are new ones. A line of LIST:

    kernel | access, access | places | why they are false

Exit code: 0 nothing new, 1 new races, 2 a report that does not end in a summary, or a LIST that cannot be read.
"""

import re
import sys

FIRST = re.compile(r"^=+ (?:error|warning|info)?:?\s*(?:Potential )?(?:Race|hazard|\w+ hazard) (?:reported|detected) "
                   r"between (\w+) access at (.*)$", re.IGNORECASE)
SECOND = re.compile(r"^=+\s+and (\w+) access at (.*)$", re.IGNORECASE)
SUMMARY = re.compile(r"^=+ (?:RACECHECK|ERROR) SUMMARY: (\d+)", re.IGNORECASE)


def instance_of(place):
    """The kernel with its template arguments: what is left of an access's place without offset, line and hazards."""
    place = re.sub(r"\s*\[\d+ hazards?\]\s*$", "", place.strip())
    place = re.sub(r"\+0x[0-9a-f]+$", "", place)
    place = re.sub(r"^0x[0-9a-f]+\s+in\s+", "", place)
    return re.sub(r"^\S+\.(?:cu|cuh|h):\d+:", "", place)


def kernel_of(place):
    name = re.sub(r"\(anonymous namespace\)|<unnamed>|\{anonymous\}", "", instance_of(place))
    name = re.split(r"[<(]", name)[0].strip().split()[-1:]
    return name[0].split("::")[-1] if name else "?"


def place_of(access):
    return re.sub(r"\s*\[\d+ hazards?\]\s*$", "", access.strip())


def read_report(path):
    """{(kernel, kinds): {instance: {pairs of places}}}, and whether the report is whole."""
    races, whole, first = {}, False, None
    with open(path, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            line = line.rstrip("\n")
            if match := FIRST.match(line):
                first = match.groups()
            elif first and (match := SECOND.match(line)):
                kinds = tuple(sorted((first[0].capitalize(), match[1].capitalize())))
                key = (kernel_of(first[1]), kinds)
                places = races.setdefault(key, {}).setdefault(instance_of(first[1]), set())
                places.add((place_of(first[1]), place_of(match[2])))
            elif match := SUMMARY.match(line):
                whole = True
                if int(match[1]) > 0 and not races:
                    sys.exit(unreadable(f"{path} counts {match[1]} hazards and names none that is understood"))
    return races, whole


def unreadable(text):
    print(text, file=sys.stderr)
    return 2


def read_list(path):
    known = {}
    with open(path, encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip() or line.startswith("#"):
                continue
            columns = [column.strip() for column in line.split("|")]
            kinds = tuple(sorted(kind.strip() for kind in columns[1].split(","))) if len(columns) == 4 else ()
            if len(kinds) != 2 or not columns[2].isdigit() or not columns[3]:
                sys.exit(unreadable(f"{path}:{number}: not 'kernel | access, access | places | why they are false'"))
            known[(columns[0], kinds)] = int(columns[2])
    return known


def main():
    if len(sys.argv) != 3:
        sys.exit(unreadable(__doc__))
    known = read_list(sys.argv[2])
    races, whole = read_report(sys.argv[1])
    if not whole:
        sys.exit(unreadable(f"{sys.argv[1]} does not end in a summary: what ran there did not come to its end"))
    new = 0
    for (kernel, kinds), instances in sorted(races.items()):
        for instance, places in sorted(instances.items()):
            if len(places) <= known.get((kernel, kinds), 0):
                continue
            new += 1
            print(f"{kernel}: {len(places)} places of {kinds[0].lower()} against {kinds[1].lower()}, "
                  f"{known.get((kernel, kinds), 0)} are known to be false\n  in {instance}")
            for first, second in sorted(places):
                print(f"  {first}\n    and {second}")
    for kernel, kinds in sorted(set(known) - set(races)):
        print(f"not seen: {kernel}, {kinds[0].lower()} against {kinds[1].lower()}")
    if new:
        print("Find out what these are. One that is proven false goes into the list, with the reason.")
    sys.exit(1 if new else 0)


main()
