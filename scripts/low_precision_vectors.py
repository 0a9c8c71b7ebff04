#!/usr/bin/env python3
"""Writes tests/tensor/fixtures/low_precision/: known answers of the formats in src/tensor/low_precision.h.

Written from the formats' published descriptions, with exact rational numbers and lists of all values of a format, so
that it shares no trick with the C++. Operations in fp32 are exact ones rounded once, to nearest, ties to even.

  scalars.txt  single values
  blocks.txt   what quantisers make of matrices in fp32
  experts.txt  what every producer of operands makes of matrices in BF16, by the rows of experts, by tokens, by weights

    scripts/low_precision_vectors.py [FOLDER]
"""

import bisect
import functools
import pathlib
import random
import struct
import sys
from fractions import Fraction

MAX_F32 = Fraction(2**24 - 1) * Fraction(2) ** 104


def bits_of(x):
    return struct.unpack("<I", struct.pack("<f", x))[0]


@functools.cache
def value_of(bits):
    """An fp32 number as a Fraction, or "inf", "-inf", "nan"."""
    sign, exponent, mantissa = bits >> 31, bits >> 23 & 255, bits & 0x7FFFFF
    if exponent == 255:
        return "nan" if mantissa else ("-inf" if sign else "inf")
    magnitude = Fraction(mantissa, 2**149) if exponent == 0 else Fraction(2**23 + mantissa) * Fraction(2) ** (exponent - 150)
    return -magnitude if sign else magnitude


def round_even(x):
    """The nearest integer, ties to even."""
    low = x.numerator // x.denominator
    twice = 2 * (x - low)
    return low if twice < 1 or (twice == 1 and low % 2 == 0) else low + 1


def f32(x):
    """x rounded to fp32; beyond, "inf"."""
    if x == 0:
        return Fraction(0)
    magnitude = abs(x)
    exponent = max(-149, magnitude.numerator.bit_length() - magnitude.denominator.bit_length() - 25)
    while magnitude >= Fraction(2) ** (exponent + 24):
        exponent += 1
    rounded = round_even(magnitude / Fraction(2) ** exponent) * Fraction(2) ** exponent
    if rounded > MAX_F32:
        return "inf" if x > 0 else "-inf"
    return rounded if x > 0 else -rounded


def e4m3_value(code):
    exponent, mantissa = code >> 3 & 15, code & 7
    if exponent == 0:
        return Fraction(mantissa, 512)
    return Fraction(8 + mantissa, 8) * Fraction(2) ** (exponent - 7)


E4M3 = [e4m3_value(code) for code in range(127)]  # 127 is NaN
E2M1 = [Fraction(v) for v in ("0", "1/2", "1", "3/2", "2", "3", "4", "6")]


def nearest(values, magnitude):
    """The code of the nearest value, ties to the even code; saturating."""
    if magnitude >= values[-1]:
        return len(values) - 1
    high = bisect.bisect_right(values, magnitude)
    low = high - 1
    below, above = magnitude - values[low], values[high] - magnitude
    return low if below < above or (below == above and low % 2 == 0) else high


def at_random(values, magnitude, byte):
    if magnitude >= values[-1]:
        return len(values) - 1
    high = bisect.bisect_right(values, magnitude)
    low = high - 1
    way = (magnitude - values[low]) / (values[high] - values[low])
    return high if int(way * 256) + byte >= 256 else low


def encode(values, sign_bit, nan_code, bits, byte=None):
    value, sign = value_of(bits), sign_bit if bits >> 31 else 0
    if value == "nan":
        return nan_code
    if value in ("inf", "-inf"):
        return sign | len(values) - 1
    magnitude = abs(value)
    return sign | (nearest(values, magnitude) if byte is None else at_random(values, magnitude, byte))


def e4m3(bits):
    return encode(E4M3, 0x80, 0x7F, bits)


def e2m1(bits, byte=None):
    return encode(E2M1, 8, 7, bits, byte)


@functools.cache
def e8m0_up(x):
    """The least code whose power of two is not below x."""
    if not isinstance(x, Fraction):
        return 255
    return next((code for code in range(255) if Fraction(2) ** (code - 127) >= x), 254)


def fp32_bits(x):
    if isinstance(x, str):
        return {"inf": 0x7F800000, "-inf": 0xFF800000, "nan": 0x7FC00000}[x]
    return bits_of(float(x))


def times(a, b):
    if "nan" in (a, b):
        return "nan"
    return f32(a * b)


ONE_448TH = f32(Fraction(1, 448))
ONE_6TH = f32(Fraction(1, 6))


def amax_of(block):
    values = [value_of(bits) for bits in block]
    return "nan" if any(isinstance(v, str) for v in values) else max((abs(v) for v in values), default=Fraction(0))


def e4m3_block(block):
    amax = amax_of(block)
    if amax == "nan":
        return 255, [0x7F] * len(block)
    scale = e8m0_up(times(amax, ONE_448TH))
    inverse = Fraction(2) ** (127 - scale)
    out = []
    for bits in block:
        product = fp32_bits(times(value_of(bits), inverse))
        out.append(e4m3(product | (bits & 0x80000000)))
    return scale, out


def nvfp4_block(block, tensor_amax, random_bytes=None):
    if tensor_amax == "nan":
        return 0x7F, [7] * len(block)
    factor = Fraction(1) if tensor_amax == 0 else min(Fraction(2688) / tensor_amax, Fraction(2) ** 200)
    factor = f32(factor)
    if factor == "inf":
        factor = MAX_F32
    scale_value = times(amax_of(block), times(factor, ONE_6TH))
    scale = e4m3(fp32_bits(scale_value))
    decoded = times(E4M3[scale], f32(1 / factor))
    element_factor = MAX_F32 if decoded == 0 else f32(1 / decoded)
    if element_factor == "inf":
        element_factor = MAX_F32
    out = []
    for i, bits in enumerate(block):
        product = fp32_bits(times(value_of(bits), element_factor)) | (bits & 0x80000000)
        out.append(e2m1(product, None if random_bytes is None else random_bytes[i]))
    return scale, out


def neighbours(x):
    bits = bits_of(float(x))
    return [max(bits - 1, 0), bits, bits + 1]


def scalar_inputs(values):
    """Every value of a format, everything half way between two, and their neighbours in fp32; specials; samples."""
    points = sorted(set(values + [(a + b) / 2 for a, b in zip(values, values[1:])]))
    points += [values[-1] * Fraction(k, 16) for k in (17, 18, 32)]
    bits = [b for point in points for b in neighbours(point)]
    bits += [0, 1, 0x7FFFFF, 0x800000, 0x7F7FFFFF, 0x7F800000, 0x7F800001, 0x7FC00000]
    rng = random.Random(1)
    bits += [fp32_bits(f32(Fraction(rng.gauss(0, 1)) * values[-1] / 3)) & 0x7FFFFFFF for _ in range(200)]
    return [b for x in bits for b in (x, x | 0x80000000)]


def philox(counter, key):
    """Philox4x32-10: Salmon et al., SC'11."""
    counter, key = list(counter), list(key)
    for _ in range(10):
        a, b = counter[0] * 0xD2511F53, counter[2] * 0xCD9E8D57
        counter = [b >> 32 ^ counter[1] ^ key[0], b & 0xFFFFFFFF, a >> 32 ^ counter[3] ^ key[1], a & 0xFFFFFFFF]
        key = [(key[0] + 0x9E3779B9) & 0xFFFFFFFF, (key[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return counter


KEY, STREAM = 0x0123456789ABCDEF, 0xFEDCBA9876543210


def rounding_bytes(block):
    words = philox((block & 0xFFFFFFFF, block >> 32, STREAM & 0xFFFFFFFF, STREAM >> 32), (KEY & 0xFFFFFFFF, KEY >> 32))
    return [words[i // 4] >> 8 * (i % 4) & 255 for i in range(16)]


def matrices():
    """Name, rows, columns and fp32 bits: what quantisers get."""
    rng = random.Random(2)

    def normal(count, scale=1.0):
        return [bits_of(rng.gauss(0, scale)) for _ in range(count)]

    yield "zeros", 2, 32, [0, 0x80000000] * 32
    yield "normal", 3, 256, normal(768)
    yield "short", 5, 83, normal(415, 1e-3)
    yield "tall", 18, 35, normal(630)
    yield "one", 1, 1, [bits_of(-3.25)]
    yield "no_rows", 0, 40, []
    yield "large", 2, 40, normal(79, 1e37) + [0x7F7FFFFF]
    yield "tiny", 2, 40, normal(40, 1e-38) + [rng.randrange(0x800000) for _ in range(40)]
    yield "outlier", 2, 48, normal(95) + [bits_of(30000.0)]
    for name, bits in (("nan", 0xFFC00001), ("infinity", 0x7F800000), ("negative_infinity", 0xFF800000)):
        x = normal(3 * 140)
        x[200] = bits
        yield name, 3, 140, x
    ties = [Fraction(v) * sign for v in ("1/4", "3/4", "5/4", "7/4", "5/2", "7/2", "5") for sign in (1, -1)]
    yield "ties", 1, 16, [bits_of(float(v)) for v in [Fraction(6), Fraction(-6)] + ties]
    steps = [Fraction(k, 1024) for k in range(1, 30)] + [Fraction(17, 16), Fraction(19, 16), Fraction(448)]
    yield "ties_of_e4m3", 1, 32, [bits_of(float(v)) for v in steps]
    edges = [b for power in (-3, 0, 5) for b in neighbours(448 * Fraction(2) ** power)]
    yield "edges_of_scales", 9, 1, edges


def quantised(name, rows, cols, x, form, height, width, block):
    """A line of codes and a line of scales. `block` makes both of a list and the block's number."""
    is_nvfp4 = form.startswith("nvfp4")
    codes, scales = [[0] * cols for _ in range(rows)], []
    for top in range(0, rows, height):
        for left in range(0, cols, width):
            places = [(i, j) for i in range(top, min(top + height, rows)) for j in range(left, min(left + width, cols))]
            scale, out = block([x[i * cols + j] for i, j in places], len(scales))
            scales.append(scale)
            for (i, j), code in zip(places, out):
                codes[i][j] = code
    if is_nvfp4:
        codes = [[row[j] | (row[j + 1] << 4 if j + 1 < cols else 0) for j in range(0, cols, 2)] for row in codes]
    values = " ".join(f"{c:02x}" for row in codes for c in row)
    return f"{form} {name}\n{values}\n" + " ".join(f"{s:02x}" for s in scales) + "\n"


# --- experts.txt

EXPERTS = (7, 2, 9, 4, 0)  # which of all experts one is, as far as random bits ask
SIGNS = (1, 1, 1, -1, 1, -1, -1, -1, -1, -1, -1, 1, -1, 1, -1, -1)  # of the transform: TransformerEngine's


def bf16(x):
    """The upper half of x's bits in fp32, rounded to BF16; x: a number, or an fp32 result that may be "nan"."""
    bits = fp32_bits(x) if isinstance(x, (str, Fraction)) else bits_of(x)
    if bits & 0x7FFFFFFF > 0x7F800000:
        return bits >> 16 | 0x40
    return bits + 0x7FFF + (bits >> 16 & 1) >> 16


def plus(a, b):
    return "nan" if isinstance(a, str) or isinstance(b, str) else f32(a + b)


def transformed(block):
    """x diag(s) H / 4, rounded to BF16, of at most 16 fp32 bits, behind which there are zeros; neighbours are added
    first."""
    x = [value_of(bits) for bits in block] + [Fraction(0)] * (16 - len(block))
    x = [v if s > 0 else times(v, Fraction(-1)) for v, s in zip(("nan" if isinstance(v, str) else v for v in x), SIGNS)]
    half = 1
    while half < 16:
        x = [plus(x[i], x[i | half]) if not i & half else plus(x[i ^ half], times(x[i], Fraction(-1))) for i in range(16)]
        half *= 2
    return [bf16(times(v, Fraction(1, 4))) << 16 for v in x]


def special_row(kind, number, cols, rng):
    """One row, as BF16's bits: `number` of its kind."""
    middles = [(a + b) / 2 for a, b in zip(E4M3, E4M3[1:])]
    middles4 = [(a + b) / 2 for a, b in zip(E2M1, E2M1[1:])] * 2

    def signed(i, bits):
        return bits | (0x8000 if i % 3 == 1 else 0)

    if kind == "zeros":
        return [0x8000 if i % 2 else 0 for i in range(cols)]
    if kind == "ordinary":
        return [bf16(rng.gauss(0, 1)) for _ in range(cols)]
    if kind == "tensors_largest":  # in NVFP4, the scale of a block whose largest is 6 is 1 then
        return [bf16(2688.0)] + [bf16(rng.gauss(0, 100)) for _ in range(cols - 1)]
    if kind.endswith("ties_of_e4m3"):
        shift = {"below": -1, "above": 1}.get(kind.split("_")[0], 0)
        picks = [middles[(number * (cols - 1) + i) % len(middles)] for i in range(cols - 1)]
        return [bf16(448.0)] + [signed(i, bf16(v) + shift) for i, v in enumerate(picks)]
    if kind.endswith("ties_of_e2m1"):
        shift = {"below": -1, "above": 1}.get(kind.split("_")[0], 0)
        return [
            bf16(6.0) if i % 16 == 0 else 0 if i % 16 == 15 else bf16(middles4[i % 16 - 1]) + shift | i // 8 % 2 << 15
            for i in range(cols)
        ]
    if kind == "ties_of_scales":  # of NVFP4's blocks; each has one of those scales for its largest magnitude
        return [
            bf16(6 * middles[(number * cols + i) * 5 % len(middles)] / 8) if i % 16 == 3 else bf16(rng.gauss(0, 0.001))
            for i in range(cols)
        ]
    if kind == "edges_of_scales":
        power = Fraction(2) ** (number // 3 % 9 - 4)
        row = [bf16(f32(Fraction(rng.uniform(-400, 400)) * power)) for _ in range(cols)]
        row[number % cols] = signed(number, bf16(448 * power) + number % 3 - 1)
        return row
    if kind == "underflows":
        small = [f32(Fraction(k, 4096)) for k in (1, 2, 3, 4, 5, 6, 7, 8, 12)]
        steps = [bf16(v) + d for v in small for d in (-1, 0, 1)]
        return [bf16(448.0)] + [signed(i, steps[(number + i) % len(steps)]) for i in range(cols - 1)]
    if kind == "subnormals":
        return [rng.randrange(0x80) | rng.randrange(2) << 15 for _ in range(cols)]
    if kind == "tiny":
        return [bf16(rng.gauss(0, 1) * 2.0**-100) for _ in range(cols)]
    if kind == "large":
        return [bf16(rng.gauss(0, 1) * 2.0**118) for _ in range(cols)]
    row = special_row("ordinary", number, cols, rng)
    row[{"first": 0, "last": cols - 1}.get(kind.split("_")[0], 7)] = {
        "nan": 0x7FC0, "first": 0xFFC1, "last": 0x7F81, "payload": 0xFFFF, "infinity": 0x7F80, "negative": 0xFF80,
    }[kind.split("_")[0]]
    return row


SPECIALS = (
    "ordinary ties_of_e4m3 below_ties_of_e4m3 above_ties_of_e4m3 zeros ties_of_e2m1 below_ties_of_e2m1 "
    "above_ties_of_e2m1 ties_of_scales edges_of_scales underflows subnormals"
).split()


def expert_matrices():
    """Name, columns, and for each expert the kinds of its rows."""
    many = [SPECIALS[i % len(SPECIALS)] for i in range(127)]
    few = ["zeros", "subnormals", "tiny", "subnormals"] * 32
    yield "ragged", 32, [[], ["ties_of_e4m3"], few[:127], ["tensors_largest"] + many, many + ["large", "large"]]
    bad = ["nan", "infinity", "ordinary", "zeros", "last_nan", "payload_nan", "ordinary", "negative_infinity", "ties_of_e2m1"]
    yield "not_finite", 48, [["first_nan"], [], bad + ["ordinary"] * 7 + ["infinity"], (SPECIALS * 3)[:33]]
    yield "weights", 48, [
        ["tensors_largest"] + (SPECIALS * 4)[:47],
        ["zeros"] * 16 + ["ordinary"] * 8 + ["nan"] + ["ordinary"] * 7 + ["subnormals"] * 16,
    ]


def answer(form, experts, cols):
    """The lines of a form's answer: the tensors' largest magnitudes, and scale and codes of each block. Blocks of rows
    and of tiles are in row-major order, those along tokens go by expert, then by their first token, then by column."""
    format, shape = form.split("_")[:2]
    at_random, n = form.endswith("random"), {"fp8": 128, "mxfp8": 32, "nvfp4": 16}[format]
    amaxes, lines = [], []
    for number, rows in zip(EXPERTS, experts):
        if shape == "rows":
            blocks = [row[j : j + n] for row in rows for j in range(0, cols, n)]
        elif shape == "tiles":
            corners = [(i, j) for i in range(0, len(rows), n) for j in range(0, cols, n)]
            blocks = [[bits for row in rows[i : i + n] for bits in row[j : j + n]] for i, j in corners]
        else:
            blocks = [[row[j] for row in rows[i : i + n]] for i in range(0, len(rows), n) for j in range(cols)]
            if format == "nvfp4":
                blocks = [transformed(block) for block in blocks]
        amax = amax_of([bits for block in blocks for bits in block])
        amaxes.append(f"{fp32_bits(amax):08x}")
        for i, block in enumerate(blocks):
            if format == "nvfp4":
                scale, codes = nvfp4_block(block, amax, rounding_bytes((number << 40) + i) if at_random else None)
            else:
                scale, codes = e4m3_block(block)
            digits = "01x" if format == "nvfp4" else "02x"
            lines.append(f"{scale:02x} " + "".join(f"{code:{digits}}" for code in codes))
    return f"answer {form} {len(lines)}\n" + " ".join(amaxes) + "\n" + "\n".join(lines) + "\n"


def write_experts(path):
    rng = random.Random(3)
    with open(path, "w") as out:
        out.write(f"key {KEY:016x} {STREAM:016x}\nexperts " + " ".join(map(str, EXPERTS)) + "\n")
        for name, cols, kinds in expert_matrices():
            out.write(f"matrix {name} {sum(map(len, kinds))} {cols} {len(kinds)}\n")
            out.write(" ".join(str(sum(map(len, kinds[:e]))) for e in range(len(kinds) + 1)) + "\n")
            experts, seen = [], {}
            for of_expert in kinds:
                experts.append([])
                for kind in of_expert:
                    row = special_row(kind, seen.setdefault(kind, 0), cols, rng)
                    seen[kind] += 1
                    if len(of_expert) > 100 and kind not in ("zeros", "subnormals"):  # blocks along tokens, too
                        row[5] = 0
                        row[6] = rng.randrange(0x80)
                        row[8] = bf16(448.0) if seen[kind] % 2 else bf16(Fraction(2 * (seen[kind] % 16) + 17))
                    experts[-1].append(row)
                    out.write(kind + " " + "".join(f"{bits:04x}" for bits in row) + "\n")
            experts = [[[bits << 16 for bits in row] for row in rows] for rows in experts]
            forms = "fp8_tiles nvfp4_tiles mxfp8_rows_of_weights mxfp8_columns_of_weights"
            if name != "weights":
                forms = "fp8_rows mxfp8_rows nvfp4_rows nvfp4_rows_random fp8_columns mxfp8_columns nvfp4_columns"
                forms += " nvfp4_columns_random"
            for form in forms.split():
                out.write(answer(form, experts, cols))


def main():
    folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "tests/tensor/fixtures/low_precision")
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "scalars.txt", "w") as out:
        for bits in scalar_inputs(E4M3):
            out.write(f"e4m3 {bits:08x} {e4m3(bits):02x}\n")
        for bits in scalar_inputs(E2M1):
            out.write(f"e2m1 {bits:08x} {e2m1(bits):02x}\n")
            for byte in (0, 1, 127, 128, 255):
                out.write(f"e2m1_random_{byte} {bits:08x} {e2m1(bits, byte):02x}\n")
        powers = [Fraction(2) ** p for p in (-140, -128, -127, -126, -3, 0, 1, 120, 127)]
        for bits in [b for p in powers for b in neighbours(p)] + [0, 1, 0x7F7FFFFF, 0x7F800000, 0x7FC00000]:
            out.write(f"e8m0 {bits:08x} {e8m0_up(value_of(bits)):02x}\n")
    with open(folder / "blocks.txt", "w") as out:
        out.write(f"key {KEY:016x} {STREAM:016x}\n")
        for name, rows, cols, x in matrices():
            amax = amax_of(x)
            out.write(f"matrix {name} {rows} {cols} {fp32_bits(amax):08x}\n" + " ".join(f"{b:08x}" for b in x) + "\n")
            for form, height, width, block in (
                ("fp8_rows", 1, 128, lambda b, n: e4m3_block(b)),
                ("fp8_tiles", 128, 128, lambda b, n: e4m3_block(b)),
                ("mxfp8_rows", 1, 32, lambda b, n: e4m3_block(b)),
                ("nvfp4_rows", 1, 16, lambda b, n: nvfp4_block(b, amax)),
                ("nvfp4_tiles", 16, 16, lambda b, n: nvfp4_block(b, amax)),
                ("nvfp4_random", 1, 16, lambda b, n: nvfp4_block(b, amax, rounding_bytes(n))),
            ):
                out.write(quantised(name, rows, cols, x, form, height, width, block))
    write_experts(folder / "experts.txt")


main()
