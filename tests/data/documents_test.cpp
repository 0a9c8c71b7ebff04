#include "data/stream/documents.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace nmoe {
namespace {

constexpr int32_t kEos = 9;

Documents find(const std::vector<int32_t>& inputs, int64_t num_seqs, int64_t seq_len) {
  Documents documents;
  find_documents(inputs, num_seqs, seq_len, kEos, documents);
  return documents;
}

TEST(Documents, StartAfterEosAndWithEverySequence) {
  const Documents found = find({1, 9, 2, 3, /**/ 4, 5, 9, 6}, 2, 4);
  EXPECT_EQ(found.cu_seqlens, (std::vector<int32_t>{0, 2, 4, 7, 8}));
  EXPECT_EQ(found.positions, (std::vector<int32_t>{0, 1, 0, 1, 0, 1, 2, 0}));
}

TEST(Documents, AnEosThatEndsASequenceStartsNoSecondDocument) {
  EXPECT_EQ(find({1, 9, /**/ 2, 3}, 2, 2).cu_seqlens, (std::vector<int32_t>{0, 2, 4}));
  EXPECT_EQ(find({1, 9}, 1, 2).cu_seqlens, (std::vector<int32_t>{0, 2}));
}

TEST(Documents, EmptyDocumentsAreTheirEos) {
  const Documents found = find({9, 9, 9, 1}, 1, 4);
  EXPECT_EQ(found.cu_seqlens, (std::vector<int32_t>{0, 1, 2, 3, 4}));
  EXPECT_EQ(found.positions, (std::vector<int32_t>{0, 0, 0, 0}));
}

TEST(Documents, WithoutEosASequenceIsOne) {
  const Documents found = find({1, 2, 3, /**/ 4, 5, 6}, 2, 3);
  EXPECT_EQ(found.cu_seqlens, (std::vector<int32_t>{0, 3, 6}));
  EXPECT_EQ(found.positions, (std::vector<int32_t>{0, 1, 2, 0, 1, 2}));
}

TEST(Documents, ReplaceWhatWasThere) {
  Documents documents;
  find_documents(std::vector<int32_t>{9, 9, 9, 9}, 1, 4, kEos, documents);
  find_documents(std::vector<int32_t>{1, 2}, 1, 2, kEos, documents);
  EXPECT_EQ(documents.cu_seqlens, (std::vector<int32_t>{0, 2}));
  EXPECT_EQ(documents.positions, (std::vector<int32_t>{0, 1}));
  EXPECT_THROW(find_documents(std::vector<int32_t>{1, 2}, 1, 3, kEos, documents), CheckFailure);
}

}  // namespace
}  // namespace nmoe
