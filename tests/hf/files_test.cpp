#include "hf/files.h"

#include <gtest/gtest.h>

namespace nmoe {
namespace {

TEST(HfFiles, WeightsAndHiddenFilesStayBehind) {
  for (const char* name : {"model-00001-of-00002.safetensors", "pytorch_model.bin", "model.safetensors.index.json",
                           ".gitattributes", "model.gguf"}) {
    EXPECT_FALSE(is_carried_by_import(name)) << name;
  }
  for (const char* name : {"config.json", "tokenizer.json", "generation_config.json", "LICENSE", "modeling.py"}) {
    EXPECT_TRUE(is_carried_by_import(name)) << name;
  }
}

TEST(HfFiles, TheTokenizersFilesAreKnown) {
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "merges.txt",
                           "chat_template.jinja", "generation_config.json", "tiktoken.model"}) {
    EXPECT_TRUE(is_tokenizer_file(name)) << name;
  }
  for (const char* name : {"config.json", "tokenizer.json.bak", "README.md"}) {
    EXPECT_FALSE(is_tokenizer_file(name)) << name;
  }
}

}  // namespace
}  // namespace nmoe
