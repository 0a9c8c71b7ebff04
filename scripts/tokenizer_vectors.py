#!/usr/bin/env python3
"""Reference ids of tiktoken and Hugging Face's tokenizers, for tests/data/tokenizer_vectors_test.cpp.

    scripts/tokenizer_vectors.py --gpt2 gpt2.tiktoken --cl100k cl100k_base.tiktoken \\
        --o200k o200k_base.tiktoken --text tinyshakespeare.txt --out tests/data/fixtures/tokenizers

    --check NAME=tokenizer.json ...    a file that nmoe wrote for tiktoken's encoding NAME must give NAME's ids

It needs the Python packages `tiktoken` and `tokenizers`, and no network: patterns and special tokens are the
installed tiktoken's own definitions, the ranks come from the files named. The same packages give the same files.

texts.json     the texts: each a list of parts, a part being a string or [string, times]
model.json     the "model" of a small byte-level BPE that the Hugging Face variants share
vectors.json   versions; per tokenizer: its definition; a digest of each text's ids, and all ids of some texts; digests
               of the sweep (see below) and of the text file; ids of texts with special tokens allowed
unicode.txt    the class of every code point as the libraries' regular expressions see it

A digest is the start, in hex, of the SHA-256 of the ids as little-endian int32. The sweep has a text for each 256 code
points (sweep_text), and a digest for each 64 of those: every code point, assigned or not, in several contexts.
"""

import argparse
import base64
import hashlib
import itertools
import json
import pathlib
import random
import struct

import tiktoken
import tiktoken_ext.openai_public as openai_public
import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

PAGE = 256  # code points in a text of the sweep
PAGES_PER_DIGEST = 64
NUM_CODE_POINTS = 0x110000
SURROGATES = range(0xD800, 0xE000)
FULL_IDS_EVERY = 40  # of these texts all ids are written
CLASSES = [r"\p{Lu}", r"\p{Ll}", r"\p{Lt}", r"\p{Lm}", r"\p{Lo}", r"\p{M}", r"\p{N}", r"\p{P}", r"\p{S}", r"\s"]


# ---- texts -------------------------------------------------------------------------------------

WORDS = (
    "the The THE don't DON'T I'll we've WE'VE they're it's it'S 'sno d'accord rock'n'roll naïve café cafe\u0301 "
    "Ångström A\u030angstro\u0308m \u212bngstrom straße ﬁn ŉ 東京 日本語のテキスト 한국어 \u1112\u1161\u11ab русский "
    "Ελληνικά עברית العربية हिन्दी ไทย ქართული ǅ ǲ ʰ ª º ⅷ ² ½ ٣ ৪ 12345678 3.14159 0x1F 1e-9 1,000,000 "
    "http://example.org/a/b?c=d&e=f#g user@example.org /usr/lib/x86_64 C:\\\\path\\n\\t snake_case camelCase "
    "CamelCase HTTPServer XMLHttpRequest a1b2c3 ... --- *** === // /* */ <tag/> {{}} [[]] $x$ #define "
    "😀 👩‍👩‍👧‍👦 🇩🇪 ☕️ ½ ∑ € ﷽ \u200b \u200d \ufeff \u00a0 \u3000 \u2028 \u0085 \u180e \x1c \x1f \x7f '\u017f '\u017fT "
    "'S 'T 'RE 'vE 'M 'LL 'd 'lL 'x \u2019s <|endoftext|> <|endofprompt|> <|fim_prefix|> <|im_start|> <｜User｜> </s> "
    "<think> </think> \u0301 a\u0301\u0323 \u0323\u0301 \u0344 \uac01\u11a8 \u1100\u1161\u11a8 e\u0328\u0301"
).split(" ")
SEPARATORS = [" ", " ", " ", " ", "", "  ", "   ", "\n", "\r\n", "\n\n", " \n", "\n ", "\t", "\t\t", " \t ", "\r", "\u00a0",
              "\u3000", "\v", "\f", "\u0085", "\u2028", "'", "/", ",", ". ", "1", " 12 ", "1234"]


def handmade_texts():
    """Runs, ends of text, long words: [part, ...] each."""
    texts = []
    for run in [" ", "\n", "\r", "\r\n", "\t", " \n", "\n ", "\u00a0", "\u3000", "a", "A", "aB", "Ab", "é", "東", "ア", "1", "'",
                "!", "/", "=", "-", "😀", "\u0301", "\x00", "\ue000", "ab ", "'s", "١", "ǅ", "\u0301A", "A\u0301", "<|"]:
        for times in (1, 2, 3, 4, 5, 9, 17, 80, 4000):
            texts.append([[run, times]])
        for before, after in (("x", "y"), ("x ", " y"), ("\n", "\n"), ("1", "2"), ("", "\n"), (" ", " "), ("'", "s")):
            texts.append([before, [run, 7], after])
    texts += [[text] for text in ("", "a\n  ", "a\n\n \t", "a \n", "  \n  ", "\n  x", "x\r\n\r\n  \r\n y", " \n \n a", "a\u2028 \n",
                                  "   'll", "x  'll", "'ll'LL'Ll", "don''t", "''s", "A'S", "1's", "_'s", " 's", "a/\n/\nb",
                                  "!/\r\n/x", "...\n\n\n...", "a.\n.b", "\u0301\u0302x", "A\u0301a", "\u0301A", "Ab\u0301C",
                                  "東A京", "A東", "ªA", "Aª", "ʰAʰ", "ǅǅa", "aǅa", "\x01\x02abc", "\x01 abc", "\u200babc",
                                  "ſ's 'ſ", "K'\u212a", "123456789", "1234567 89", "٣٤٥٦", "½½½½", "a1½b")]
    texts.append([["abcdefghij", 1500]])
    texts.append([["Lorem", 900], " ", ["ipsum1", 300]])
    return texts


def random_texts(rng):
    texts = []
    for _ in range(260):  # words and separators
        text = "".join(rng.choice(WORDS) + rng.choice(SEPARATORS) for _ in range(rng.randrange(3, 40)))
        texts.append([text])
    for _ in range(170):  # a few pages of Unicode, with some ASCII between
        pages = [rng.choice([p for p in range(NUM_CODE_POINTS // PAGE) if p < 0x320 or rng.random() < 0.02])
                 for _ in range(rng.randrange(1, 4))]
        text = ""
        for _ in range(rng.randrange(5, 90)):
            code_point = rng.choice(pages) * PAGE + rng.randrange(PAGE)
            text += chr(code_point) if code_point not in SURROGATES else "?"
            if rng.random() < 0.25:
                text += rng.choice(" \nAaz'0!/\u0301")
        texts.append([text])
    return texts


def expand(parts):
    return "".join(part if isinstance(part, str) else part[0] * part[1] for part in parts)


def sweep_text(page):
    text = ""
    for code_point in range(page * PAGE, (page + 1) * PAGE):
        if code_point not in SURROGATES:
            c = chr(code_point)
            text += f"x{c} {c}{c}1\n'{c}A{c}\n"
    return text


def sweep_texts():
    return [sweep_text(page) for page in range(NUM_CODE_POINTS // PAGE)]


# ---- digests -----------------------------------------------------------------------------------

def digest(ids, num_digits=16):
    return hashlib.sha256(struct.pack(f"<{len(ids)}i", *ids)).hexdigest()[:num_digits]


def vectors_of(encode_all, encode_all_allowed, texts, special_texts, file_text):
    """What vectors.json says of one tokenizer. encode_all: list of texts -> list of lists of ids."""
    ids = encode_all(texts)
    sweep = encode_all(sweep_texts())
    groups = [list(itertools.chain(*sweep[i:i + PAGES_PER_DIGEST])) for i in range(0, len(sweep), PAGES_PER_DIGEST)]
    file_ids = encode_all([file_text])[0]
    return {
        "digests": "".join(digest(x, num_digits=8) for x in ids),
        "ids": {str(i): ids[i] for i in range(0, len(ids), FULL_IDS_EVERY) if len(ids[i]) < 80},
        "sweep": [digest(group) for group in groups],
        "file": {"count": len(file_ids), "digest": digest(file_ids)},
        "allowed": [[text, x] for text, x in zip(special_texts, encode_all_allowed(special_texts))],
    }


# ---- tiktoken ----------------------------------------------------------------------------------

def read_ranks(path):
    ranks = {}
    for line in pathlib.Path(path).read_bytes().splitlines():
        token, rank = line.split()
        ranks[base64.b64decode(token)] = int(rank)
    return ranks


def tiktoken_encodings(args):
    """name -> tiktoken.Encoding, with the library's own patterns and special tokens."""
    files = {"gpt2": args.gpt2, "r50k": args.gpt2, "cl100k": args.cl100k, "o200k": args.o200k}

    def load(url, *_, **__):
        name = url.rsplit("/", 1)[-1]
        return read_ranks(next(path for prefix, path in files.items() if name.startswith(prefix)))

    openai_public.load_tiktoken_bpe = load
    openai_public.data_gym_to_mergeable_bpe_ranks = lambda *_, **__: read_ranks(args.gpt2)
    encodings = {}
    for name in ("gpt2", "cl100k_base", "o200k_base", "o200k_harmony"):
        if hasattr(openai_public, name):
            encodings[name] = tiktoken.Encoding(**getattr(openai_public, name)())
        else:
            print(f"NOTE: this tiktoken has no {name}")
    return encodings


def special_definition(encoding):
    """The special tokens, less those that are only reserved."""
    specials = {text: encoding.encode_single_token(text) for text in encoding.special_tokens_set}
    return {text: i for text, i in sorted(specials.items(), key=lambda item: item[1]) if "reserved" not in text}


# ---- Hugging Face ------------------------------------------------------------------------------

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
O200K = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
# tiktoken's cl100k_base since 0.8, spelled so that Oniguruma means the same: space up to the end is one word.
CL100K = LLAMA3.replace(r"|\s*[\r\n]+", r"|\s+\z|\s*[\r\n]+")
DEEPSEEK_V3 = [
    r"\p{N}{1,3}",
    "[一-龥\u3040-ゟ゠-ヿ]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"""
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
]
# Of no family that nmoe knows: it goes through its general regular expressions.
UNUSUAL = [r"[\r\n]", r"\s?[A-Za-zµÀ-ÖØ-öø-ƺǄ-ʓ]+|\s?\p{Lu}\p{Ll}+", "\\s?[!-/:-~！-／：-～‘-‟\u3000-。]+", r"\s+$",
           "[一-龥가-\ud7ff]+", r"\p{M}\S?|\P{L}{2}"]


def isolated(pattern):
    return pre_tokenizers.Split(Regex(pattern), behavior="isolated")


def byte_level(use_regex=False):
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)


def sequence(*parts):
    return pre_tokenizers.Sequence(list(parts))


# name -> (normalizer, pre_tokenizer, ignore_merges)
def variants():
    return {
        "gpt2": (None, byte_level(use_regex=True), False),
        "gpt2_split": (None, sequence(isolated(GPT2), byte_level()), False),
        "llama3": (None, sequence(isolated(LLAMA3), byte_level()), True),
        "cl100k": (None, sequence(isolated(CL100K), byte_level()), True),
        "o200k": (None, sequence(isolated(O200K), byte_level()), False),
        "o200k_removed": (None, sequence(pre_tokenizers.Split(Regex(O200K), behavior="removed", invert=True),
                                         byte_level()), False),
        "qwen2": (normalizers.NFC(), sequence(isolated(QWEN2), byte_level()), False),
        "deepseek_v3": (normalizers.Sequence([]), sequence(*map(isolated, DEEPSEEK_V3), byte_level()), False),
        "starcoder": (None, sequence(pre_tokenizers.Digits(individual_digits=True), byte_level(use_regex=True)), False),
        "digit_runs": (None, sequence(pre_tokenizers.Digits(individual_digits=False), byte_level(use_regex=True)), True),
        "unusual": (None, sequence(*map(isolated, UNUSUAL), byte_level()), False),
    }


SPECIALS = ["<|endoftext|>", "<|im_start|>", "<｜User｜>"]
NOT_SPECIAL = ["<think>", "</think>"]


def train_model(texts, file_text):
    """A BPE of 1,100 ids with tokens for the special texts, trained on both kinds of text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = sequence(isolated(O200K), byte_level())
    trainer = trainers.BpeTrainer(vocab_size=1100, special_tokens=SPECIALS[:1], show_progress=False,
                                  initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()))
    lines = file_text[:200_000].splitlines(keepends=True)
    tokenizer.train_from_iterator([*(t for t in texts if len(t) < 3000), *lines], trainer)
    return json.loads(tokenizer.to_str())["model"]


def build(model, normalizer, pre_tokenizer, ignore_merges):
    file = json.loads(Tokenizer(models.BPE()).to_str())
    file["model"] = {**model, "ignore_merges": ignore_merges}
    tokenizer = Tokenizer.from_str(json.dumps(file))
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, normalized=False, special=True) for text in SPECIALS])
    tokenizer.add_tokens([AddedToken(text, normalized=False, special=False) for text in NOT_SPECIAL])
    return tokenizer


def hf_encoder(tokenizer, special_is_text):
    def encode_all(texts):
        tokenizer.encode_special_tokens = special_is_text
        return [encoding.ids for encoding in tokenizer.encode_batch(list(texts), add_special_tokens=False)]

    return encode_all


# ---- Unicode -----------------------------------------------------------------------------------

def all_text():
    """Slices of all code points."""
    for begin in range(0, NUM_CODE_POINTS, 4096):
        yield "".join(chr(c) for c in range(begin, begin + 4096) if c not in SURROGATES)


def tiktoken_matches(pattern):
    """The code points that `pattern` matches: unmatched text gives no ids."""
    probe = tiktoken.Encoding("probe", pat_str=pattern, mergeable_ranks={bytes([b]): b for b in range(256)},
                              special_tokens={})
    return {ord(c) for text in all_text() for c in bytes(probe.encode_ordinary(text)).decode()}


def hf_matches(pattern):
    probe = pre_tokenizers.Split(Regex(f"(?:{pattern})+"), behavior="removed", invert=True)
    return {ord(c) for text in all_text() for piece, _ in probe.pre_tokenize_str(text) for c in piece}


def classes_of(matches):
    """Of every code point, what matches it, joined by "+"; "-" for nothing."""
    sets = [(pattern.strip("\\p{}"), matches(pattern)) for pattern in CLASSES]
    return ["+".join(label for label, found in sets if c in found) or "-" for c in range(NUM_CODE_POINTS)]


def runs(classes):
    return [(i, name) for i, name in enumerate(classes) if i == 0 or name != classes[i - 1]]


def write_unicode(path):
    """Runs "first class" of tiktoken's classes; then "- first class" where tokenizers' differ, "- first =" where not."""
    with open(path, "w", encoding="ascii") as out:
        classes = {"tiktoken": classes_of(tiktoken_matches), "tokenizers": classes_of(hf_matches)}
        for label, matches in (("tiktoken", tiktoken_matches), ("tokenizers", hf_matches)):
            folds = " ".join(f"{c:X}" for c in sorted(matches("(?i:[sdmtlrve])")))
            print(f"# {label}: any case of sdmtlrve: {folds}", file=out)
        print("".join(f"{first:X} {name}\n" for first, name in runs(classes["tiktoken"])), end="", file=out)
        differing = ["=" if a == b else b for a, b in zip(classes["tiktoken"], classes["tokenizers"])]
        print("".join(f"- {first:X} {name}\n" for first, name in runs(differing)), end="", file=out)
    print(f"{path}: {path.stat().st_size} bytes")


def nfc_digests():
    """Of NFC(a U+0301 c U+0323 c U+0301) for all code points c, 4,096 a digest."""
    nfc = normalizers.NFC()
    digests = []
    for begin in range(0, NUM_CODE_POINTS, 4096):
        code_points = [c for c in range(begin, begin + 4096) if c not in SURROGATES]
        text = "\n".join(nfc.normalize_str(f"a\u0301{chr(c)}\u0323{chr(c)}\u0301") for c in code_points)
        digests.append(hashlib.sha256(text.encode()).hexdigest()[:16])
    return digests


# ---- main --------------------------------------------------------------------------------------

def write_json(path, value, indent=None):
    text = json.dumps(value, ensure_ascii=False, indent=indent, separators=(",", ":") if indent is None else None)
    pathlib.Path(path).write_text(text + "\n", encoding="utf-8")
    print(f"{path}: {len(text.encode())} bytes")


def main():
    parser = argparse.ArgumentParser()
    for name in ("--gpt2", "--cl100k", "--o200k", "--text", "--out"):
        parser.add_argument(name, required=True)
    parser.add_argument("--check", action="append", default=[], metavar="NAME=FILE")
    args = parser.parse_args()
    out = pathlib.Path(args.out)
    out.mkdir(parents=True, exist_ok=True)

    parts = handmade_texts() + random_texts(random.Random(20240815))
    texts = [expand(text) for text in parts]
    file_text = pathlib.Path(args.text).read_bytes().decode()
    write_json(out / "texts.json", parts)

    vectors = {"tiktoken": tiktoken.__version__, "tokenizers": tokenizers.__version__, "nfc": nfc_digests(),
               "encodings": {}, "variants": {}}
    for name, encoding in tiktoken_encodings(args).items():
        print(name, flush=True)
        special_texts = [f"a{text} {text}b{text}" for text in special_definition(encoding)] + ["<|endoftext|", "no"]
        definition = {"pattern": encoding._pat_str, "n_vocab": encoding.n_vocab, "eos": encoding.eot_token,
                      "specials": special_definition(encoding)}
        if name == "o200k_harmony":  # o200k_base with other special tokens
            vectors["encodings"][name] = {**definition, "allowed": [
                [text, encoding.encode(text, allowed_special="all")] for text in special_texts]}
            continue
        vectors["encodings"][name] = {**definition, **vectors_of(
            lambda many, e=encoding: [e.encode_ordinary(text) for text in many],
            lambda many, e=encoding: [e.encode(text, allowed_special="all") for text in many],
            texts, special_texts, file_text)}

    for check in args.check:
        name, path = check.split("=", 1)
        encode_all = hf_encoder(Tokenizer.from_file(path), True)
        digests = "".join(digest(ids, num_digits=8) for ids in encode_all(texts))
        same = digests == vectors["encodings"][name]["digests"]
        print(f"{path}: {'the ids' if same else 'NOT THE IDS'} of {name}, {len(texts)} texts", flush=True)

    model = train_model(texts, file_text)
    write_json(out / "model.json", model)
    special_texts = [f"a{text} {text}b{text}" for text in SPECIALS + NOT_SPECIAL] + ["<|endoftext|", "no"]
    for name, (normalizer, pre_tokenizer, ignore_merges) in variants().items():
        print(name, flush=True)
        tokenizer = build(model, normalizer, pre_tokenizer, ignore_merges)
        head = json.loads(tokenizer.to_str())
        del head["model"]
        vectors["variants"][name] = {"head": head, "ignore_merges": ignore_merges, **vectors_of(
            hf_encoder(tokenizer, True), hf_encoder(tokenizer, False), texts, special_texts, file_text)}
    write_json(out / "vectors.json", vectors)
    write_unicode(out / "unicode.txt")


if __name__ == "__main__":
    main()
