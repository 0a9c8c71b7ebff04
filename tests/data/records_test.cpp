#include "data/prep/records.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <set>
#include <tuple>

#include "data/compressed.h"
#include "data/parquet_files.h"
#include "data/prep/byte_stream.h"
#include "data/test_data.h"

namespace nmoe {
namespace {

class RecordsTest : public FolderTest {
 protected:
  static std::string text_of(const fs::path& path, size_t block = 1000) {
    const auto stream = open_bytes(path);
    std::string text;
    std::vector<char> buffer(block);
    while (const size_t count = stream->read(buffer)) text.append(buffer.data(), count);
    EXPECT_EQ(stream->file_bytes_read(), static_cast<int64_t>(fs::file_size(path)));
    return text;
  }

  // Text that compression makes hardly smaller.
  static std::string random_letters(size_t size, uint32_t seed) {
    std::string text = random_bytes(size, seed);
    for (char& c : text) c = static_cast<char>('0' + (c & 63));
    return text;
  }

  static std::vector<Record> records(const fs::path& path, const RecordOptions& options = {}, int64_t skip = 0) {
    std::vector<Record> all;
    const auto reader = open_records(path, options, skip);
    for (Record record; reader->next(record);) all.push_back(record);
    Record after;
    EXPECT_FALSE(reader->next(after));
    return all;
  }

  // "number:text" or "number!fault" of each.
  static std::vector<std::string> told(const std::vector<Record>& all) {
    std::vector<std::string> lines;
    for (const Record& record : all) {
      lines.push_back(record.fault.empty() ? fmt::format("{}:{}", record.number, record.text)
                                           : fmt::format("{}!{}", record.number, record.fault));
    }
    return lines;
  }

  std::string make_parquet(const std::string& name, const std::string& select, const std::string& options = "") const {
    // Names that SQL would take for something else are given afterwards.
    const fs::path plain = dir_ / "plain.parquet";
    test::run_sql(fmt::format("COPY ({}) TO '{}' (FORMAT parquet{})", select, plain.string(), options));
    fs::rename(plain, dir_ / name);
    return (dir_ / name).string();
  }
};

using Lines = std::vector<std::string>;

TEST_F(RecordsTest, KindsByName) {
  EXPECT_EQ(file_kind("a/b.txt"), FileKind::kText);
  EXPECT_EQ(file_kind("b.md.gz"), FileKind::kText);
  EXPECT_EQ(file_kind("b"), FileKind::kText);
  EXPECT_EQ(file_kind("x.jsonl"), FileKind::kJsonLines);
  EXPECT_EQ(file_kind("x.ndjson.zst"), FileKind::kJsonLines);
  EXPECT_EQ(file_kind("x.json.gz"), FileKind::kJson);
  EXPECT_EQ(file_kind("x.parquet"), FileKind::kParquet);
}

TEST_F(RecordsTest, DecompressesMembersAndFrames) {
  const std::string a = random_bytes(300'000, 1) + std::string(700'000, 'x');
  const std::string b = "second";
  for (const size_t block : {size_t{1000}, size_t{1 << 20}}) {
    EXPECT_EQ(text_of(write("a.gz", gzip(a) + gzip("") + gzip(b)), block), a + b);
    EXPECT_EQ(text_of(write("a.zst", zstd(a) + zstd("") + zstd(b)), block), a + b);
    EXPECT_EQ(text_of(write("a.txt", a), block), a);
  }
  EXPECT_EQ(text_of(write("empty.txt", "")), "");
}

// As `zstd --long=31` writes them: unasked, the library reads windows of up to 128 MiB.
TEST_F(RecordsTest, LargeWindowsOfZstd) {
  const std::string text = "far\n" + random_bytes(100'000, 3);
  for (const int window_log : {28, 29}) {
    const std::unique_ptr<ZSTD_CCtx, size_t (*)(ZSTD_CCtx*)> context(ZSTD_createCCtx(), ZSTD_freeCCtx);
    ZSTD_CCtx_setParameter(context.get(), ZSTD_c_compressionLevel, 1);
    ZSTD_CCtx_setParameter(context.get(), ZSTD_c_windowLog, window_log);
    std::string packed(ZSTD_compressBound(text.size()) + 100, '\0');
    ZSTD_inBuffer from{text.data(), text.size(), 0};
    ZSTD_outBuffer to{packed.data(), packed.size(), 0};
    // In two steps, so that the frame does not tell a smaller size.
    ASSERT_EQ(ZSTD_isError(ZSTD_compressStream2(context.get(), &to, &from, ZSTD_e_flush)), 0U);
    ASSERT_EQ(ZSTD_compressStream2(context.get(), &to, &from, ZSTD_e_end), 0U);
    packed.resize(to.pos);
    EXPECT_EQ(text_of(write("a.zst", packed)), text) << window_log;
  }
}

// gzip itself reads past them.
TEST_F(RecordsTest, ZerosBehindGzip) {
  const std::string padding(3000, '\0');
  EXPECT_EQ(text_of(write("a.gz", gzip("one") + gzip("two") + padding)), "onetwo");
  EXPECT_EQ(told(records(write("a.txt.gz", gzip("one") + padding + "x"))),
            (Lines{"1!the gzip file has more than zeros behind its last member"}));
  EXPECT_EQ(told(records(write("a.txt.gz", padding))).size(), 1U);
  EXPECT_FALSE(records(write("a.txt.gz", padding))[0].fault.empty());
}

// With a bad record allowed, the rest of a file must not be left out as one.
TEST_F(RecordsTest, FaultsOfFilesAreNoBadRecords) {
  const std::string line = R"({"text": "one"})"
                           "\n";
  std::string lines;
  for (int i = 0; i < 1000; ++i) lines += line;
  const std::string gz = gzip(lines), zst = zstd(lines + random_letters(4000, 1));
  const RecordOptions small{.max_bytes = 1000};
  const std::string long_line = line + "{\"text\": \"" + random_letters(500'000, 2) + "\"}\n" + line;
  const std::tuple<std::string, std::string, RecordOptions> files[] = {
      {"a.jsonl.gz", gz.substr(0, gz.size() - 9), {}},
      {"a.jsonl.zst", zst.substr(0, zst.size() - 9), {}},
      {"a.txt.gz", gz.substr(0, gz.size() - 9), {}},
      {"b.txt.gz", gz.substr(0, gz.size() - 9), {.split_on = ""}},
      {"a.json", "[" + line, {}},
      {"a.json.gz", gzip("[" + line + ",{\"text\": \"tw"), {}},
      {"a.jsonl", gz, {}},
      {"b.jsonl", "PK\x03\x04", {}},
      {"c.jsonl", long_line, small},
      {"c.txt", random_letters(600'000, 4), small},
  };
  for (const auto& [name, content, options] : files) {
    const std::string path = write(name, content);
    const Record last = records(path, options).back();
    EXPECT_TRUE(last.ends_file) << name;
    int64_t bad = 0;
    EXPECT_TRUE(ends_work(last, bad, 1000)) << name;
    EXPECT_EQ(bad, 0) << name;
    const Error error = bad_record_error(path, options, last, 1000);
    EXPECT_NE(std::string(error.what()).find(last.fault), std::string::npos) << error.what();
    EXPECT_NE(error.remedy().find("leave the file out"), std::string::npos) << error.remedy();
  }
  const Record bad_line = records(write("d.jsonl", "{\n" + line))[0];
  int64_t bad = 0;
  EXPECT_FALSE(bad_line.ends_file);
  EXPECT_FALSE(ends_work(bad_line, bad, 1));
  EXPECT_TRUE(ends_work(bad_line, bad, 1));
}

// The file is whole, whatever else is short.
TEST_F(RecordsTest, MemoryThatIsUsedUpIsNoDamage) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a limit on the address space takes a sanitizer's own";
#endif
  const std::string text = random_letters(400'000, 5);
  for (const std::string& path : {write("a.txt.gz", gzip(text)), write("a.txt.zst", zstd(text))}) {
    const auto read_without_memory = [&] {
      const auto stream = open_bytes(path);
      std::vector<char> buffer(1000);
      const rlimit none{0, 0};
      ::setrlimit(RLIMIT_AS, &none);
      constexpr size_t kBlock = 4096;  // what decompressing takes is larger, what an error takes smaller
      for (void* last = nullptr; void* block = std::malloc(kBlock); last = block)
        std::memcpy(block, &last, sizeof last);
      try {
        stream->read(buffer);
      } catch (const Error& error) {
        std::fputs(error.what(), stderr);
        std::_Exit(3);
      }
      std::_Exit(0);
    };
    EXPECT_EXIT(read_without_memory(), testing::ExitedWithCode(3), "memory") << path;
  }
}

TEST_F(RecordsTest, TheLastOfSeveralMembersCounts) {
  EXPECT_EQ(told(records(write("a.jsonl", R"({"text": "one", "text": 2, "text": "three"})"))), (Lines{"1:three"}));
  EXPECT_EQ(told(records(write("a.jsonl", R"({"text": "one", "text": 2})"))),
            (Lines{"1!\"text\" is a number, not a string"}));
}

TEST_F(RecordsTest, IntegersOfMoreThan64Bits) {
  EXPECT_EQ(told(records(write("a.jsonl", R"({"text": "one", "n": 18446744073709551616})"))),
            (Lines{"1!invalid JSON: something in place of a number, or an integer of more than 64 bits"}));
  EXPECT_EQ(told(records(write("a.jsonl", R"({"text": "one", "n": 18446744073709551615})"))), (Lines{"1:one"}));
}

// DuckDB numbers rows under this name.
TEST_F(RecordsTest, AColumnNamedFileRowNumber) {
  const std::string path = make_parquet(
      "a.parquet", "SELECT 'row ' || i AS text, 7 AS FILE_ROW_NUMBER FROM range(5000) t(i)", ", ROW_GROUP_SIZE 2048");
  for (const int64_t skip : {0, 1, 2048, 4999}) {
    const std::vector<Record> all = records(path, {}, skip);
    ASSERT_EQ(std::ssize(all), 5000 - skip);
    for (int64_t i = 0; i < std::ssize(all); ++i) {
      ASSERT_EQ(all[static_cast<size_t>(i)].text, fmt::format("row {}", skip + i));
    }
  }
}

TEST_F(RecordsTest, DamagedCompressedFiles) {
  const std::string text = random_bytes(200'000, 2);
  const auto expect_damage = [&](const std::string& name, const std::string& content, const std::string& part) {
    const std::string path = write(name, content);
    try {
      text_of(path);
      ADD_FAILURE() << "read " << name;
    } catch (const DamagedStream& damage) {
      EXPECT_NE(std::string(damage.what()).find(part), std::string::npos) << damage.what();
    }
  };
  const std::string gz = gzip(text);
  const std::string zst = zstd(text);
  for (const size_t cut : {size_t{1}, size_t{9}, size_t{1000}}) {
    expect_damage("a.gz", gz.substr(0, gz.size() - cut), "ends too early");
    expect_damage("a.zst", zst.substr(0, zst.size() - cut), "ends too early");
  }
  expect_damage("a.gz", "no gzip at all", "damaged");
  expect_damage("a.zst", "no zstd at all", "damaged");
  std::string flipped = gz;
  flipped[gz.size() - 6] ^= 1;  // in the checksum
  expect_damage("a.gz", flipped, "damaged: incorrect data check");
}

TEST_F(RecordsTest, Text) {
  EXPECT_EQ(told(records(write("a.txt", "one\ntwo"))), (Lines{"1:one\ntwo"}));
  EXPECT_EQ(told(records(write("a.txt", ""))), (Lines{"1:"}));
  EXPECT_EQ(told(records(write("a.txt", "one"), {}, 1)), (Lines{}));
  const RecordOptions split{.split_on = "%%"};
  const std::string path = write("b.txt.gz", gzip("one\n%%\n%%\r\ntwo %%\n%%"));
  EXPECT_EQ(told(records(path, split)), (Lines{"1:one\n", "2:", "3:two %%\n"}));
  EXPECT_EQ(told(records(path, split, 2)), (Lines{"3:two %%\n"}));
  EXPECT_EQ(told(records(path, split, 3)), (Lines{}));
  EXPECT_EQ(told(records(write("b.txt", ""), split)), (Lines{"1:"}));
  EXPECT_EQ(told(records(write("c.txt.gz", gzip(random_letters(5000, 3)).substr(0, 2000)), split)),
            (Lines{"1!the gzip file ends too early"}));
}

// A few kilobytes of compressed data can be more than any memory holds.
TEST_F(RecordsTest, RecordsThatAreTooLarge) {
  const std::string fault = "!a record of more than 1.00 MiB";
  RecordOptions options{.max_bytes = 1 << 20};
  const std::string bomb(64 << 20, 'x');
  const std::string good = R"({"text": "good"})";
  EXPECT_EQ(told(records(write("a.jsonl.gz", gzip(good + "\n" + bomb)), options)), (Lines{"1:good", "2" + fault}));
  EXPECT_EQ(told(records(write("a.json.gz", gzip("[" + good + ", \"" + bomb)), options)),
            (Lines{"1:good", "2" + fault}));
  EXPECT_EQ(told(records(write("a.txt.gz", gzip(bomb)), options)), (Lines{"1" + fault}));
  const Record record = records(write("a.txt.gz", gzip(bomb)), options)[0];
  EXPECT_NE(record.remedy.find("--max-record"), std::string::npos);
  options.split_on = "%%";
  EXPECT_EQ(told(records(write("b.txt.gz", gzip("one\n%%\n" + bomb)), options)), (Lines{"1:one\n", "2" + fault}));
}

TEST_F(RecordsTest, BlankLinesSeparate) {
  const RecordOptions blank{.split_on = ""};
  const std::string path = write("a.txt", "\n\r\none\ntwo\n\n \t\r\n\nthree\n\nfour\n\n\n");
  EXPECT_EQ(told(records(path, blank)), (Lines{"1:one\ntwo\n", "2:three\n", "3:four\n"}));
  EXPECT_EQ(told(records(path, blank, 2)), (Lines{"3:four\n"}));
  EXPECT_EQ(told(records(path, blank, 3)), (Lines{}));
  EXPECT_EQ(told(records(write("a.txt", "one\n\ntwo"), blank)), (Lines{"1:one\n", "2:two"}));
  EXPECT_EQ(told(records(write("a.txt", "one\n"), blank)), (Lines{"1:one\n"}));
  EXPECT_EQ(told(records(write("a.txt", "one\n\n  "), blank)), (Lines{"1:one\n"}));
  // A line that separates ends a document, however many there are.
  EXPECT_EQ(told(records(write("a.txt", "one\n%\n%\n"), {.split_on = "%"})), (Lines{"1:one\n", "2:"}));
}

TEST_F(RecordsTest, AFilesTailIsADocumentOfItsOwn) {
  const RecordOptions tail{.tail = 0.25};
  const auto of = [&](const std::string& text, int64_t skip = 0) {
    Lines lines;
    for (const Record& record : records(write("a.txt", text), tail, skip)) {
      lines.push_back((record.tail ? "tail " : "") + told({record})[0]);
    }
    return lines;
  };
  EXPECT_EQ(of("one\ntwo\nfour\nfive\n"), (Lines{"1:one\ntwo\nfour\n", "tail 2:five\n"}));
  EXPECT_EQ(of("one\ntwo\nfour\nfive\n", 1), (Lines{"tail 2:five\n"}));
  EXPECT_EQ(of("abcdefgh"), (Lines{"1:abcdef", "tail 2:gh"}));
  EXPECT_EQ(of("ab\xC3\xA9"), (Lines{"1:ab", "tail 2:\xC3\xA9"}));
  EXPECT_EQ(of("a"), (Lines{"1:a"}));
  EXPECT_EQ(of(""), (Lines{"1:"}));
  // A line's end that is far away does not move the cut.
  const std::string longer = "x\n" + std::string(40'000, 'y');
  EXPECT_EQ(records(write("a.txt", longer), tail)[1].text.size(), 10'001U);
}

TEST_F(RecordsTest, AWholeFileMayComeInParts) {
  std::string text;
  for (size_t i = 0; text.size() < 1'000'000; ++i) text += fmt::format("line {}{}\n", i, std::string(i % 50, 'x'));
  const size_t lines_end = text.size();
  text += std::string(200'000, 'y') + "\xC3\xA9";
  for (const size_t part : {size_t{7'001}, size_t{300'000}}) {
    std::string together;
    int64_t number = 0;
    for (const Record& record : records(write("a.txt.gz", gzip(text)), {.part_bytes = part})) {
      EXPECT_EQ(record.number, ++number);
      EXPECT_LE(record.text.size(), part);
      EXPECT_EQ(record.fault, "");
      together += record.text;
      EXPECT_TRUE(together.size() >= lines_end || record.text.back() == '\n');
    }
    EXPECT_TRUE(together == text);
  }
  const RecordOptions parts{.part_bytes = 4};
  EXPECT_EQ(told(records(write("b.txt", "one\ntwo"), parts)), (Lines{"1:one\n", "2:two"}));
  EXPECT_EQ(told(records(write("b.txt", "one\ntwo"), parts, 1)), (Lines{"2:two"}));
  EXPECT_EQ(told(records(write("b.txt", "\xC3\xA9x\xC3\xA9"), parts)), (Lines{"1:\xC3\xA9x", "2:\xC3\xA9"}));
  EXPECT_EQ(told(records(write("b.txt", ""), parts)), (Lines{"1:"}));
}

// What editors and exports of other systems put at a file's front is no part of its text.
TEST_F(RecordsTest, AByteOrderMarkIsPassedOver) {
  const std::string mark = "\xEF\xBB\xBF";
  const std::string json = mark + "{\"text\": \"one\"}\n{\"text\": \"two\"}\n";
  EXPECT_EQ(told(records(write("a.jsonl", json))), (Lines{"1:one", "2:two"}));
  EXPECT_EQ(told(records(write("a.jsonl.gz", gzip(mark.substr(0, 1)) + gzip(json.substr(1))))),
            (Lines{"1:one", "2:two"}));
  EXPECT_EQ(told(records(write("a.json", json))), (Lines{"1:one", "2:two"}));
  EXPECT_EQ(told(records(write("a.txt", mark + "one"))), (Lines{"1:one"}));
  EXPECT_EQ(told(records(write("a.txt", mark + "--\n" + mark + "two"), {.split_on = "--"})),
            (Lines{"1:", "2:" + mark + "two"}));
  EXPECT_EQ(told(records(write("a.txt", mark))), (Lines{"1:"}));
}

TEST_F(RecordsTest, WhatIsNoTextIsNamed) {
  const std::string zeros(8, '\0');
  const std::pair<std::string, std::string> contents[] = {
      {"\xFD"
       "7zXZ" +
           zeros,
       "it is an xz file, not text"},
      {"BZh91AY", "it is a bzip2 file, not text"},
      {gzip("text"), "it is a gzip file, not text"},
      {zstd("text"), "it is a zstd file, not text"},
      {"PK\x03\x04 docx", "it is a zip archive, not text"},
      {"\xFF\xFEt" + zeros, "it is text in UTF-16, not text"},
      {std::string(257, 'n') + "ustar  ", "it is a tar archive, not text"},
      {"some bytes" + zeros, "its byte 11 is 0: it is not text in UTF-8"},
  };
  for (const auto& [content, fault] : contents) {
    for (const char* name : {"a.txt", "a.jsonl", "a.json"}) {
      const std::vector<Record> all = records(write(name, content));
      ASSERT_EQ(told(all), (Lines{"1!" + fault})) << name;
      EXPECT_FALSE(all[0].remedy.empty());
    }
    EXPECT_EQ(told(records(write("a.txt.gz", gzip(content)))), (Lines{"1!" + fault}));
  }
}

TEST_F(RecordsTest, InvalidUtf8IsNamed) {
  const std::vector<Record> all = records(write("a.txt", "one\n\xC3\xA9\xEF\xBF\xBD caf\xE9 au lait"));
  EXPECT_EQ(told(all), (Lines{"1!the text is not valid UTF-8: byte 14 (0xE9), in its line 2"}));
  EXPECT_NE(all[0].remedy.find("iconv -f LATIN1"), std::string::npos);
  EXPECT_EQ(told(records(write("a.txt", "one\n--\nt\xFFwo\n--\nthree"), {.split_on = "--"})),
            (Lines{"1:one\n", "2!the text is not valid UTF-8: byte 2 (0xFF), in its line 1", "3:three"}));
  const std::string parquet = make_parquet("a.parquet", "SELECT unhex(h) AS text FROM (VALUES ('61'), ('C3')) t(h)");
  EXPECT_EQ(told(records(parquet)), (Lines{"1:a", "2!the text is not valid UTF-8: byte 1 (0xC3), in its line 1"}));
}

// Documents and lines longer than any buffer, of every length around its size.
TEST_F(RecordsTest, LongRecords) {
  std::string text;
  std::string json;
  Lines expected;
  for (size_t i = 0; i < 60; ++i) {
    const std::string body(i % 7 == 0 ? 300'000 + i : (1 << 14) - 30 + i, static_cast<char>('a' + i % 26));
    text += body + "\n--\n";
    json += "{\"x\": [1, {\"y\": \"}\\\"\"}], \"text\": \"" + body + "\\n\"}\n";
    expected.push_back(fmt::format("{}:{}\n", i + 1, body));
  }
  EXPECT_EQ(told(records(write("a.txt", text), {.split_on = "--"})), expected);
  EXPECT_EQ(told(records(write("a.jsonl", json))), expected);
  EXPECT_EQ(told(records(write("a.jsonl.zst", zstd(json)))), expected);
  EXPECT_EQ(told(records(write("a.json", json))), expected);
  std::string array = json;
  for (size_t i = 0; i + 1 < array.size(); ++i) {
    if (array[i] == '\n') array[i] = ',';
  }
  EXPECT_EQ(told(records(write("b.json", "\n [" + array + " ] "))), expected);
  EXPECT_EQ(told(records(write("b.json", "[" + array + "]"), {}, 58)), (Lines{expected[58], expected[59]}));
}

TEST_F(RecordsTest, JsonLinesSayWhatIsWrong) {
  const std::string path = write("a.jsonl",
                                 "{\"text\": \"one\", \"id\": 7}\n"
                                 "\r\n"
                                 "{\"text\": \n"
                                 "{\"id\": \"x\"}\n"
                                 "{\"text\": 5}\n"
                                 "{\"text\": null}\n"
                                 "[1]\n"
                                 "{\"text\": \"\xFF\"}\n"
                                 "{\"text\": \"t\\u00e9\\ud83d\\ude00\", \"id\": \"b\"} \n"
                                 "{\"text\": \"cut");
  const std::vector<Record> all = records(path);
  ASSERT_EQ(all.size(), 9U);
  EXPECT_EQ(all[0].text, "one");
  EXPECT_EQ(all[1].number, 3);
  EXPECT_NE(all[1].fault.find("invalid JSON"), std::string::npos);
  EXPECT_EQ(all[2].fault, "no field \"text\"");
  EXPECT_EQ(all[3].fault, "\"text\" is a number, not a string");
  EXPECT_EQ(all[4].fault, "\"text\" is null, not a string");
  EXPECT_EQ(all[5].fault, "an array, not a JSON object");
  EXPECT_NE(all[6].fault.find("UTF-8"), std::string::npos) << all[6].fault;
  EXPECT_EQ(all[7].text, "t\xC3\xA9\xF0\x9F\x98\x80");
  EXPECT_EQ(all[8].number, 10);
  EXPECT_NE(all[8].fault.find("invalid JSON"), std::string::npos);

  const auto with_ids = records(path, {.text_field = "text", .id_field = "id"}, 1);
  EXPECT_EQ(with_ids.size(), 8U);
  EXPECT_EQ(with_ids[6].id, "b");
  EXPECT_EQ(records(path, {.text_field = "text", .id_field = "id"})[0].id, "7");

  EXPECT_EQ(told(records(write("b.jsonl", "\n \n"))), (Lines{}));
  EXPECT_EQ(told(records(write("b.jsonl", ""))), (Lines{}));
  const std::string good = "{\"text\": \"a\"}\n";
  const std::string cut = write("c.jsonl.gz", gzip(good) + gzip(random_letters(3000, 4)).substr(0, 1000));
  const auto damaged = told(records(cut));
  EXPECT_EQ(damaged.front(), "1:a");
  EXPECT_TRUE(damaged.back().ends_with("!the gzip file ends too early")) << damaged.back();
}

TEST_F(RecordsTest, JsonSaysWhatIsWrong) {
  EXPECT_EQ(told(records(write("a.json", "{\"text\": \"a\"} {\"text\": \"b\"}"))), (Lines{"1:a", "2:b"}));
  EXPECT_EQ(told(records(write("a.json", "[{\"text\": \"a\"}, 12, \"x y\", {\"text\": \"b\"}]"))),
            (Lines{"1:a", "2!a number, not a JSON object", "3!a string, not a JSON object", "4:b"}));
  EXPECT_EQ(told(records(write("a.json", "[{\"text\": \"a\"}, {\"text\": \"b"))),
            (Lines{"1:a", "2!the file ends inside a value"}));
  EXPECT_EQ(told(records(write("a.json", "[{\"text\": \"a\"},"))), (Lines{"1:a", "2!the file ends inside a value"}));
  EXPECT_EQ(told(records(write("a.json", " "))), (Lines{}));
  EXPECT_EQ(told(records(write("a.json", "[]"))), (Lines{}));
  EXPECT_EQ(records(write("a.json", "}{\"text\": \"a\"}")).back().text, "a");
}

TEST_F(RecordsTest, Parquet) {
  // More rows than a chunk of DuckDB's has, in several row groups; texts short enough to be inlined, and long.
  const std::string path = make_parquet(
      "it's [a]*.parquet",
      "SELECT i AS \"my id\", repeat('ab', (i % 40)::BIGINT) || i AS text, 'p' || i AS prompt FROM range(10000) t(i)",
      ", ROW_GROUP_SIZE 3000");
  make_parquet("it's axy.parquet", "SELECT 'a decoy for the glob' AS text");
  const RecordOptions options{.id_field = "my id", .prompt_field = "prompt"};
  const std::vector<Record> all = records(path, options);
  ASSERT_EQ(all.size(), 10'000U);
  for (size_t i = 0; i < all.size(); ++i) {
    std::string text;
    for (size_t j = 0; j < i % 40; ++j) text += "ab";
    EXPECT_EQ(all[i].text, text + std::to_string(i));
    EXPECT_EQ(all[i].id, std::to_string(i));
    EXPECT_EQ(all[i].prompt, fmt::format("p{}", i));
    EXPECT_EQ(all[i].number, static_cast<int64_t>(i) + 1);
  }
  for (const int64_t skip : {1, 2047, 2048, 5000, 9999}) {
    const std::vector<Record> rest = records(path, options, skip);
    ASSERT_EQ(static_cast<int64_t>(rest.size()), 10'000 - skip);
    EXPECT_EQ(rest.front().text, all[static_cast<size_t>(skip)].text);
    EXPECT_EQ(rest.front().number, skip + 1);
  }
  EXPECT_TRUE(records(path, options, 10'000).empty());
}

TEST_F(RecordsTest, ParquetSaysWhatIsWrong) {
  const std::string path =
      make_parquet("a.parquet",
                   "SELECT CASE WHEN i = 1 THEN NULL ELSE 't' || i END AS text, i AS n, [i] AS list "
                   "FROM range(3) t(i)");
  EXPECT_EQ(told(records(path)), (Lines{"1:t0", "2!\"text\" is NULL", "3:t2"}));
  expect_error(ErrorKind::kUsage, "a.parquet' has no column \"Text\"", [&] { records(path, {.text_field = "Text"}); });
  expect_error(ErrorKind::kUsage, "column \"n\" of", [&] { records(path, {.text_field = "n"}); });
  expect_error(ErrorKind::kUsage, "BIGINT[], not a string", [&] { records(path, {.prompt_field = "list"}); });
  expect_error(ErrorKind::kUsage, "no column \"key\"", [&] { records(path, {.id_field = "key"}); });
  EXPECT_EQ(told(records(make_parquet("b.parquet", "SELECT 'x' AS text WHERE false"))), (Lines{}));
  EXPECT_EQ(told(records(write("c.parquet", ""))), (Lines{}));
  expect_error(ErrorKind::kRuntime, "d.parquet", [&] { records(write("d.parquet", "no Parquet file at all")); });
  const std::string whole = read_file(path);
  expect_error(ErrorKind::kRuntime, "e.parquet",
               [&] { records(write("e.parquet", whole.substr(0, whole.size() - 30))); });
}

TEST_F(RecordsTest, Conversations) {
  const RecordOptions options{.id_field = "id", .messages_field = "messages"};
  const std::string lines =
      R"({"id": 1, "messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "y\u00f6"}]})"
      "\n"
      R"({"id": 2, "messages": [{"role": "user", "content": "hi"}]})"
      "\n"
      R"({"id": 3, "messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": null}]})"
      "\n"
      R"({"id": 4, "messages": "hi"})"
      "\n"
      R"({"id": 5, "text": "hi"})"
      "\n";
  const std::vector<Record> all = records(write("a.jsonl", lines), options);
  EXPECT_EQ(told(all), (Lines{"1:hi\ny\xC3\xB6", "2!no message is the assistant's: there is nothing to learn",
                              "3!message 2 has no \"content\" that is a string", "4!its messages are not a list",
                              "5!no field \"messages\""}));
  EXPECT_EQ(all[0].messages,
            "[{\"role\":\"user\",\"content\":\"hi\"},{\"role\":\"assistant\",\"content\":\"y\xC3\xB6\"}]");
  EXPECT_NE(all[1].remedy.find("\"role\""), std::string::npos);
  const std::string parquet = make_parquet("a.parquet",
                                           "SELECT 7 AS id, [{'role': 'user', 'content': 'hi'}, {'role': 'assistant', "
                                           "'content': 'yo'}] AS messages");
  const std::vector<Record> rows = records(parquet, options);
  EXPECT_EQ(told(rows), (Lines{"1:hi\nyo"}));
  EXPECT_EQ(rows[0].messages, R"([{"role":"user","content":"hi"},{"role":"assistant","content":"yo"}])");
  EXPECT_EQ(rows[0].id, "7");
  expect_error(ErrorKind::kUsage, "is plain text, which has no messages",
               [&] { records(write("a.txt", "hi"), options); });
}

// What is beside the messages, and within them beside what is said.
TEST_F(RecordsTest, FieldsOfConversations) {
  const RecordOptions options{.messages_field = "messages"};
  const std::string lines =
      R"({"tools": [{"name": "f"}], "id": 7, "messages": [{"role": "assistant", "content": null, "tool_calls": [1]}]})"
      "\n"
      R"({"messages": [{"role": "assistant", "tool_calls": [1], "reasoning_content": "hm"}], "chat_template_kwargs": null})"
      "\n"
      R"({"system": "Be brief.", "messages": [{"role": "assistant", "content": "yo"}]})"
      "\n"
      R"({"messages": [{"role": "assistant", "content": "yo", "weight": 2}]})"
      "\n";
  const std::vector<Record> all = records(write("a.jsonl", lines), options);
  EXPECT_EQ(told(all),
            (Lines{"1:\n[1]", "2:\nhm\n[1]", "3!the record has \"system\", which is not supported beside messages",
                   "4!message 1 has the weight 2, which is neither 0 nor 1"}));
  EXPECT_EQ(all[0].fields, R"({"tools":[{"name":"f"}]})");
  EXPECT_EQ(all[1].fields, "");
  const std::vector<Record> rows =
      records(make_parquet("a.parquet",
                           "SELECT '[{\"name\": \"f\"}]' AS tools, NULL AS system, "
                           "[{'role': 'assistant', 'content': 'yo', 'tool_calls': NULL, 'weight': NULL}] AS messages"),
              options);
  EXPECT_EQ(told(rows), (Lines{"1:yo"}));
  EXPECT_EQ(rows[0].fields, R"({"tools":"[{\"name\": \"f\"}]","system":null})");

  // What is said to mean nothing is not looked at.
  const RecordOptions without{.messages_field = "messages", .ignored_fields = {"system", "tools"}};
  EXPECT_EQ(told(records(dir_ / "a.jsonl", without))[2], "3:yo");
  EXPECT_EQ(records(dir_ / "a.jsonl", without)[0].fields, "");
  EXPECT_EQ(records(dir_ / "a.parquet", without)[0].fields, "");
}

TEST_F(RecordsTest, ContentsInParts) {
  const RecordOptions options{.messages_field = "messages"};
  const auto line = [](const std::string& parts) {
    return R"({"messages": [{"role": "user", "content": )" + parts + R"(}, {"role": "assistant", "content": "yo"}]})" +
           "\n";
  };
  const std::string lines = line(R"([{"type": "text", "text": "hi"}, {"type": "text", "text": "there"}])") +
                            line(R"([{"type": "image_url", "image_url": {"url": "x"}}])") +
                            line(R"([{"type": "text", "text": 3}])") + line(R"(["hi"])") +
                            line(R"([{"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}])") +
                            line("[]");
  EXPECT_EQ(told(records(write("a.jsonl", lines), options)),
            (Lines{"1:hi\nthere\nyo", "2!message 1 has a part of the type \"image_url\", and only text is supported",
                   "3!message 1 has a part without \"type\": \"text\" and a \"text\" that is a string",
                   "4!message 1 has a part that is not an object",
                   "5!message 1 has a part with \"cache_control\", which is not supported", "6:\nyo"}));
  const std::string parquet = make_parquet(
      "a.parquet",
      "SELECT [{'role': 'assistant', 'content': [{'type': 'text', 'text': 'yo', 'image': NULL}]}] AS messages");
  EXPECT_EQ(told(records(parquet, options)), (Lines{"1:yo"}));
}

// What DuckDB finds out while it reads.
TEST_F(RecordsTest, ParquetDamagedInTheMiddle) {
  const std::string path =
      make_parquet("a.parquet", "SELECT md5(i::VARCHAR) || md5((i + 1)::VARCHAR) AS text FROM range(200000) t(i)",
                   ", ROW_GROUP_SIZE 50000, COMPRESSION zstd");
  std::string content = read_file(path);
  content.replace(content.size() / 2, content.size() / 3, std::string(content.size() / 3, '\x55'));
  write("a.parquet", content);
  const auto reader = open_records(path, {});
  Record record;
  int64_t last = 0;
  while (reader->next(record) && record.fault.empty()) {
    EXPECT_EQ(record.text.size(), 64U);
    EXPECT_EQ(record.number, ++last);
  }
  EXPECT_GT(last, 0);
  EXPECT_EQ(record.number, last + 1);
  EXPECT_TRUE(record.fault.starts_with("the row cannot be read: ")) << record.fault;
  EXPECT_NE(record.remedy.find("download"), std::string::npos);
}

// Only the rows themselves are lost, wherever they stand, and reading may begin behind them.
TEST_F(RecordsTest, ParquetRowsThatCannotBeReadAreRecordsAtFault) {
  const std::set<int64_t> bad = {1, 2047, 5000, 5001, 20'000};
  std::string list;
  for (const int64_t number : bad) list += fmt::format("{}{}", list.empty() ? "" : ", ", number);
  const std::string path =
      make_parquet("a.parquet",
                   fmt::format("SELECT CASE WHEN i IN ({}) THEN 'broken row ' ELSE 'a good row ' END || i AS text "
                               "FROM range(1, 20001) t(i)",
                               list),
                   ", ROW_GROUP_SIZE 6144, COMPRESSION uncompressed, WRITE_BLOOM_FILTER false");
  std::string content = read_file(path);
  for (size_t place = 0; (place = content.find("broken row ", place)) != std::string::npos;) content[place] = '\xFF';
  write("a.parquet", content);
  for (const int64_t skip : {0, 1, 3000, 5000, 19'999, 20'000}) {
    const std::vector<Record> all = records(path, {}, skip);
    ASSERT_EQ(std::ssize(all), 20'000 - skip);
    for (int64_t i = 0; i < std::ssize(all); ++i) {
      const Record& record = all[static_cast<size_t>(i)];
      ASSERT_EQ(record.number, skip + i + 1);
      if (bad.contains(record.number)) {
        EXPECT_NE(record.fault.find("the row cannot be read: "), std::string::npos) << record.number;
        EXPECT_NE(record.fault.find("not valid UTF8"), std::string::npos) << record.fault;
      } else {
        ASSERT_EQ(record.fault, "");
        ASSERT_EQ(record.text, fmt::format("a good row {}", record.number));
      }
    }
  }
}

TEST_F(RecordsTest, Places) {
  EXPECT_EQ(place_of("a.txt", {}, 1), "'a.txt'");
  EXPECT_EQ(place_of("a.txt", {.split_on = "x"}, 2), "'a.txt', document 2");
  EXPECT_EQ(place_of("a.jsonl.gz", {}, 3), "'a.jsonl.gz', line 3");
  EXPECT_EQ(place_of("a.json", {}, 4), "'a.json', element 4");
  EXPECT_EQ(place_of("a.parquet", {}, 5), "'a.parquet', row 5");
}

}  // namespace
}  // namespace nmoe
