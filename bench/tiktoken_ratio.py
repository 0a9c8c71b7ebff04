#!/usr/bin/env python3
"""How much faster nmoe tokenizes than tiktoken, on one thread of one machine: the same ranks, texts and documents.

    bench/tiktoken_ratio.py --gpt2 gpt2.tiktoken --o200k o200k_base.tiktoken --english FILE --code FILE \\
        [--program build/cpu/n] [--rounds 5]

Both take turns: a round is one process of `n bench tokenizer` and one pass of tiktoken's encode_ordinary over the same
documents, some MB long. Medians count. It needs the Python package `tiktoken`, and no network.
"""

import argparse
import base64
import json
import pathlib
import statistics
import subprocess
import time

import tiktoken
import tiktoken_ext.openai_public as openai_public

DOCUMENT_BYTES = 64 << 10  # as in src/cli/bench_tokenizer_command.cpp
PASS_BYTES = 8 << 20


def read_ranks(path):
    lines = (line.split() for line in pathlib.Path(path).read_bytes().splitlines())
    return {base64.b64decode(token): int(rank) for token, rank in lines}


def encoding_of(name, path):
    """The installed tiktoken's own definition, with the ranks of a local file."""
    openai_public.load_tiktoken_bpe = lambda *_, **__: read_ranks(path)
    openai_public.data_gym_to_mergeable_bpe_ranks = lambda *_, **__: read_ranks(path)
    return tiktoken.Encoding(**getattr(openai_public, name)())


def documents_of(text):
    documents = []
    while text:
        size = min(DOCUMENT_BYTES, len(text))
        if size < len(text):
            size = text.rfind(b"\n", 0, size) + 1 or size
        documents.append(text[:size].decode(errors="replace"))
        text = text[size:]
    return documents


def tiktoken_mb_per_s(encoding, text):
    documents = documents_of(text)
    repeats = -(-PASS_BYTES // len(text))
    begin = time.perf_counter()
    num_ids = sum(len(encoding.encode_ordinary(document)) for _ in range(repeats) for document in documents)
    seconds = time.perf_counter() - begin
    return repeats * len(text) / 1e6 / seconds, repeats * len(text) / num_ids


def nmoe_mb_per_s(program, tokenizer, path):
    command = [program, "bench", "tokenizer", tokenizer, path, "--threads", "1", "--json"]
    result = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return result["results"][0]["mb_per_s"], result["bytes_per_token"]


def main():
    parser = argparse.ArgumentParser()
    for name in ("--gpt2", "--o200k", "--english", "--code"):
        parser.add_argument(name, required=True)
    parser.add_argument("--program", default="build/cpu/n")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()

    print(f"tiktoken {tiktoken.__version__}, one thread, medians of {args.rounds} rounds")
    print(f"{'encoding':<12} {'text':<8} {'tiktoken':>10} {'nmoe':>10}   ratio")
    for name, ranks in (("gpt2", args.gpt2), ("o200k_base", args.o200k)):
        encoding = encoding_of(name, ranks)
        for kind, path in (("English", args.english), ("code", args.code)):
            text = pathlib.Path(path).read_bytes()
            tiktoken_mb_per_s(encoding, text[:100_000])  # warms up
            theirs, ours = [], []
            for _ in range(args.rounds):
                their_speed, their_bytes = tiktoken_mb_per_s(encoding, text)
                our_speed, our_bytes = nmoe_mb_per_s(args.program, f"{name}:{ranks}", path)
                assert abs(their_bytes - our_bytes) < 1e-3, f"{their_bytes} and {our_bytes} bytes a token: other ids"
                theirs.append(their_speed)
                ours.append(our_speed)
            their_speed, our_speed = statistics.median(theirs), statistics.median(ours)
            print(f"{name:<12} {kind:<8} {their_speed:>5.1f} MB/s {our_speed:>5.1f} MB/s {our_speed / their_speed:>6.1f}x")


if __name__ == "__main__":
    main()
