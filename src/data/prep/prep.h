// Converts files of text, JSON and Parquet to a dataset: OUT/train, OUT/valid (data/shards/shard.h) and
// OUT/tokenizer.json, OUT/report.json (what was read, kept and dropped), OUT/dropped.jsonl (each document that was
// dropped, and why) and, of conversations, OUT/chat_template.jinja (how they are written).
#pragma once

#include "data/prep/options.h"
#include "data/prep/report.h"

namespace nmoe {

// Reads every record, drops what the filters say, encodes the rest and writes the splits. Plain text is taken byte for
// byte; empty documents are dropped. The order is that of the inputs, and the files written are the same bytes for any
// number of threads and however often the work was interrupted.
//
// Documents pass, in this order: the filters on their text, exact deduplication, the limits in tokens, near
// deduplication; the first that drops it is the reason given.
//
// A validation split comes from one of `valid_inputs`, `valid_fraction` and `valid_tail`. With a fraction, equal
// documents land in the same split.
//
// Every `checkpoint_seconds` all work is made durable in OUT/.prep and under temporary names. The next call with the
// same options (except for threads, skip_bad, checkpoint_seconds and force) and unchanged input files continues from
// there; with other options it is an error unless `force`. After completion, the same call only returns the report: a
// preparation that was killed at the very end, too, can simply be repeated.
//
// Memory: a few batches of documents of some MB, and the largest document several times over; in addition 32 to 64
// bytes per document for `dedup`, and about 700 for `near_dedup`.
//
// Error (usage) on options that cannot be met: nothing to read, an empty split, a document longer
// than a shard, another dataset in `out` without `force`; (runtime) on more bad records than allowed, unreadable
// files and full disks. A failure before the first checkpoint leaves `out` as it was; after it, the unfinished work
// stays for the next call.
PrepReport prepare_dataset(const PrepOptions& options);

}  // namespace nmoe
