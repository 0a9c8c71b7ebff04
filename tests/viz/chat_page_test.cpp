// The page of n serve in a browser.
#include <gtest/gtest.h>

#include "serve/served_model.h"
#include "support/temp_dir.h"
#include "viz/browser.h"

namespace nmoe::test {
namespace {

TEST(ChatPage, Talks) {
  if (!has_browser()) GTEST_SKIP() << "there are no chromium and chromium-driver (scripts/setup.sh --browser)";
  const ServedModel server({"--chat-template", "chat.jinja"});
  const TempDir dir;
  Browser browser(dir.path());
  const std::string address = fmt::format("http://127.0.0.1:{}/", server.port());
  browser.open(address);
  EXPECT_TRUE(browser.becomes_true("document.getElementById('model').textContent === 'tiny'"));
  browser.run("document.getElementById('max-tokens').value = 12; return 0");
  browser.type("#words", "<b>cat</b>\xEE\x80\x87");  // WebDriver's Enter
  EXPECT_TRUE(browser.becomes_true(
      "document.querySelectorAll('.turn.assistant').length === 1 && !document.getElementById('send').disabled"));
  EXPECT_TRUE(browser.becomes_true("document.getElementById('connection').textContent === ''"));
  EXPECT_TRUE(browser.becomes_true("document.querySelector('.turn.assistant .words').textContent.length > 0"));
  EXPECT_EQ(browser.run("return document.querySelector('.turn.user .words').textContent"), "<b>cat</b>");
  EXPECT_EQ(browser.violations(NMOE_AXE), json::array());
  browser.keep_screenshot("chat");
  EXPECT_EQ(browser.console_errors(), std::vector<std::string>{});
  // What the server refuses is said, and the message stays to be sent again.
  browser.run(
      "document.getElementById('words').value = 'again '.repeat(500);"
      "document.getElementById('say').requestSubmit(); return 0");
  EXPECT_TRUE(browser.becomes_true("document.getElementById('connection').className === 'lost'"));
  EXPECT_TRUE(browser.becomes_true("document.getElementById('words').value.startsWith('again')"));
  EXPECT_EQ(browser.foreign_requests(address), std::vector<std::string>{});
}

}  // namespace
}  // namespace nmoe::test
