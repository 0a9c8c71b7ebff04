// What a preparation of a dataset has read, kept and dropped.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "data/prep/inputs.h"

namespace nmoe {

struct SplitReport {
  int64_t documents = 0;
  int64_t tokens = 0;  // end-of-sequence ids included
  int64_t bytes = 0;   // of text
  int64_t shards = 0;
};

struct DropCount {
  int64_t records = 0;
  int64_t bytes = 0;  // of text
};

// Conversations that became one document for each reply, and how many those are (chat/conversation_encoder.h).
struct ByReplyCount {
  int64_t records = 0;
  int64_t documents = 0;
};

struct PrepReport {
  SplitReport train;
  SplitReport valid;  // all 0 if no validation split was requested; then none is written
  int64_t records = 0;
  // By reason: "bad record", "empty", those of filters.h, "duplicate", "near duplicate".
  std::map<std::string, DropCount> dropped;
  ByReplyCount by_reply;

  InputPaths left_out;  // without its `files`

  std::string conversation_note;  // ConversationEncoder::note

  // Nothing was done, since an earlier call with the same arguments made the dataset. What follows is then 0.
  bool was_there = false;
  // What follows is of this process only, if it continued the work of another:
  int64_t resumed_records = 0;  // records that the other had processed
  int64_t text_bytes = 0;
  double seconds = 0;
  // Summed over threads.
  double encode_seconds = 0;
  int64_t encoded_bytes = 0;
  double near_dedup_seconds = 0;
  int64_t near_dedup_bytes = 0;
};

}  // namespace nmoe
