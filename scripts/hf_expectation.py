#!/usr/bin/env python3
"""What transformers computes from a model that `n export` wrote, for `n parity`.

    scripts/hf_expectation.py HF_DIR TEXT_FILE OUT.safetensors [--seq-len 128] [--seqs 4]

It needs `torch`, `transformers` and `safetensors`. The folder is loaded as any user would (AutoTokenizer,
AutoModelForCausalLM), the text tokenized with the folder's own tokenizer, and OUT holds ids, logits, loss and gradients
(scripts/hf_fixture.py lists them). It also prints a greedy continuation of the text's beginning. Then

    n parity HF_DIR OUT.safetensors
"""

import argparse
import pathlib

import torch
import transformers
from safetensors.torch import save_file

import hf_fixture


def main():
    parser = argparse.ArgumentParser(description="writes what transformers computes from an exported model")
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("text", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--seq-len", type=int, default=128)
    parser.add_argument("--seqs", type=int, default=4)
    arguments = parser.parse_args()

    tokenizer = transformers.AutoTokenizer.from_pretrained(arguments.folder)
    wanted = arguments.seqs * (arguments.seq_len + 1)
    ids = tokenizer(arguments.text.read_text(encoding="utf-8")[: 16 * wanted])["input_ids"][:wanted]
    ids = torch.tensor(ids).reshape(arguments.seqs, arguments.seq_len + 1)
    model = hf_fixture.load_as_float32(arguments.folder)
    tensors = hf_fixture.compute(model, ids)
    save_file(tensors, arguments.out)
    print(f"{type(model).__name__}, {type(tokenizer).__name__}: loss {tensors['loss'].item():.6f} on {ids.shape}")

    start = ids[:1, :16]
    with torch.no_grad():
        longer = model.generate(start, max_new_tokens=32, do_sample=False)
    print(repr(tokenizer.decode(start[0])), "->", repr(tokenizer.decode(longer[0, start.shape[1] :])))


if __name__ == "__main__":
    main()
