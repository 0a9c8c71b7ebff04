#!/usr/bin/env python3
"""Reads TensorBoard event files independently of nmoe and compares them with scalars.csv of the same run.

    n runs export RUN -o tb --format tensorboard && n runs export RUN -o csv --format csv
    python3 bench/tensorboard_reference.py tb/RUN csv/RUN

With the package `tensorboard` its reader is used, too. Otherwise records and messages are taken apart here: TFRecord
(length, masked CRC-32C, bytes, masked CRC-32C) and protocol buffers of Event, Summary and Summary.Value.
"""
import csv
import glob
import math
import struct
import sys

TABLE = []
for n in range(256):
    for _ in range(8):
        n = (n >> 1) ^ (0x82F63B78 if n & 1 else 0)
    TABLE.append(n)


def masked_crc(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def records(data):
    at = 0
    while at < len(data):
        head = data[at : at + 8]
        (size,) = struct.unpack("<Q", head)
        body = data[at + 12 : at + 12 + size]
        assert struct.unpack("<I", data[at + 8 : at + 12])[0] == masked_crc(head), "checksum of a length"
        assert struct.unpack("<I", data[at + 12 + size : at + 16 + size])[0] == masked_crc(body), "checksum of a record"
        yield body
        at += 16 + size


def varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, at


def fields(data):
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        kind = key & 7
        if kind == 0:
            value, at = varint(data, at)
        elif kind == 1:
            value, at = data[at : at + 8], at + 8
        elif kind == 2:
            size, at = varint(data, at)
            value, at = data[at : at + size], at + size
        elif kind == 5:
            value, at = data[at : at + 4], at + 4
        else:
            raise ValueError(f"wire type {kind}")
        yield key >> 3, value


def scalars(path):
    """{(tag, step): value} of Event{step = 2, file_version = 3, summary = 5}, Summary{value = 1}, Value{tag = 1,
    simple_value = 2}."""
    found, version = {}, None
    for body in records(open(path, "rb").read()):
        event = dict(fields(body))
        version = version or event.get(3)
        if 5 not in event:
            continue
        for number, value in fields(event[5]):
            if number == 1:
                parts = dict(fields(value))
                key = (parts[1].decode(), event.get(2, 0))
                assert key not in found, f"{key} twice"
                found[key] = struct.unpack("<f", parts[2])[0]
    assert version == b"brain.Event:2", version
    return found


def by_tensorboard(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    reader = EventAccumulator(folder, size_guidance={"scalars": 0})
    reader.Reload()
    return {(tag, e.step): e.value for tag in reader.Tags()["scalars"] for e in reader.Scalars(tag)}


def main():
    folder, csv_folder = sys.argv[1:]
    readings = {"this script": scalars(glob.glob(f"{folder}/events.out.tfevents.*")[0])}
    try:
        readings["tensorboard"] = by_tensorboard(folder)
    except ImportError as error:
        print(f"tensorboard's own reader: not here ({error})")
    with open(f"{csv_folder}/scalars.csv", newline="") as file:
        wanted = {(row["tag"], int(row["step"])): float(row["value"]) for row in csv.DictReader(file)}
    for name, found in readings.items():
        assert found.keys() == wanted.keys(), f"{name}: {found.keys() ^ wanted.keys()}"
        for key, value in wanted.items():
            single = struct.unpack("<f", struct.pack("<f", value))[0] if abs(value) < 3.4e38 else value
            same = found[key] == single or (math.isnan(single) and math.isnan(found[key]))
            assert same, f"{name}: {key} is {found[key]}, not {single}"
        print(f"{name}: {len(found)} values of {len({tag for tag, _ in found})} tags, all as in scalars.csv")


main()
