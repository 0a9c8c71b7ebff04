#include "data/stream/documents.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace nmoe {
namespace {

Documents find(const std::vector<uint8_t>& ends, int64_t num_seqs, int64_t seq_len) {
  Documents documents;
  find_documents(ends, num_seqs, seq_len, documents);
  return documents;
}

TEST(Documents, StartBehindTheEndOfAnotherAndWithEverySequence) {
  const Documents found = find({0, 1, 0, 0, 0, /**/ 0, 0, 1, 0, 1}, 2, 4);
  EXPECT_EQ(found.cu_seqlens, (std::vector<int32_t>{0, 2, 4, 7, 8}));
  EXPECT_EQ(found.positions, (std::vector<int32_t>{0, 1, 0, 1, 0, 1, 2, 0}));
}

TEST(Documents, AnEndThatIsASequencesStartsStartsNoSecondDocument) {
  EXPECT_EQ(find({0, 1, 0, /**/ 0, 0, 0}, 2, 2).cu_seqlens, (std::vector<int32_t>{0, 2, 4}));
  EXPECT_EQ(find({0, 1, 1}, 1, 2).cu_seqlens, (std::vector<int32_t>{0, 2}));
}

TEST(Documents, EmptyDocumentsAreTheirEnd) {
  const Documents found = find({1, 1, 1, 0, 0}, 1, 4);
  EXPECT_EQ(found.cu_seqlens, (std::vector<int32_t>{0, 1, 2, 3, 4}));
  EXPECT_EQ(found.positions, (std::vector<int32_t>{0, 0, 0, 0}));
}

TEST(Documents, WithoutEndsASequenceIsOne) {
  for (const Documents& found : {find({}, 2, 3), find(std::vector<uint8_t>(8), 2, 3)}) {
    EXPECT_EQ(found.cu_seqlens, (std::vector<int32_t>{0, 3, 6}));
    EXPECT_EQ(found.positions, (std::vector<int32_t>{0, 1, 2, 0, 1, 2}));
  }
}

TEST(Documents, PaddingIsADocumentThatIsNamed) {
  const Documents found = find({0, 1, 0, 2, 0, 0, /**/ 0, 1, 2, 1, 2, 0}, 2, 5);
  EXPECT_EQ(found.cu_seqlens, (std::vector<int32_t>{0, 2, 4, 5, 7, 8, 9, 10}));
  EXPECT_EQ(found.positions, (std::vector<int32_t>{0, 1, 0, 1, 0, 0, 1, 0, 0, 0}));
  EXPECT_EQ(found.padding, (std::vector<int32_t>{1, 4, 6}));
  EXPECT_EQ(found.count(), 7);
  EXPECT_EQ(found.length(0), 2);
  EXPECT_EQ(found.length(2), 1);
}

TEST(Documents, ReplaceWhatWasThere) {
  Documents documents;
  find_documents(std::vector<uint8_t>{1, 2, 1, 1, 1}, 1, 4, documents);
  EXPECT_FALSE(documents.padding.empty());
  find_documents(std::vector<uint8_t>{0, 0, 0}, 1, 2, documents);
  EXPECT_EQ(documents.cu_seqlens, (std::vector<int32_t>{0, 2}));
  EXPECT_EQ(documents.positions, (std::vector<int32_t>{0, 1}));
  EXPECT_TRUE(documents.padding.empty());
  EXPECT_THROW(find_documents(std::vector<uint8_t>{1, 2}, 1, 3, documents), CheckFailure);
}

}  // namespace
}  // namespace nmoe
