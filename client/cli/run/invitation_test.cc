#include "client/cli/run/invitation.h"

#include <fstream>
#include <iterator>
#include <string>

#include "common/crypto/crypto.h"
#include "gtest/gtest.h"

namespace ringd::cli {
namespace {

std::string ReadFile(const std::string& path) {
  std::ifstream file(path);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

TEST(Invite, EachNodeGetsACertificateThatSaysItsName) {
  const auto invitations = Invite("head", 7000, {2, 3});
  ASSERT_TRUE(invitations.ok()) << invitations.status();
  ASSERT_EQ(invitations->size(), 3u);
  const char* const uris[] = {"ringd://node/node-0", "ringd://node/node-1", "ringd://scheduler"};
  const int slots[] = {2, 3, 0};
  for (size_t i = 0; i < 3; ++i) {
    const Invitation& invitation = (*invitations)[i];
    EXPECT_EQ(invitation.scheduler, "head:7000");
    EXPECT_EQ(invitation.slots, slots[i]);
    EXPECT_EQ(invitation.authority, (*invitations)[0].authority);
    const auto named = CertificateUris(invitation.certificate);
    ASSERT_TRUE(named.ok());
    EXPECT_EQ(*named, std::vector<std::string>{uris[i]});
    const auto signature = Sign(invitation.key, "text");
    ASSERT_TRUE(signature.ok());
    EXPECT_TRUE(
        VerifySignature(invitation.authority, invitation.certificate, "text", *signature).ok());
  }
}

TEST(Invitation, LineAndFilesHaveAllOfIt) {
  const Invitation made{.scheduler = "head:7000",
                        .node = "node-1",
                        .slots = 4,
                        .authority = "a\n\"quoted\"\n",
                        .certificate = "c\n",
                        .key = "k\n"};
  EXPECT_EQ(made.ToLine().find('\n'), std::string::npos);
  const auto read = Invitation::Parse(made.ToLine());
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->scheduler, made.scheduler);
  EXPECT_EQ(read->node, made.node);
  EXPECT_EQ(read->slots, 4);
  const auto flags = read->WriteTo(::testing::TempDir());
  ASSERT_TRUE(flags.ok()) << flags.status();
  ASSERT_EQ(flags->size(), 6u);
  EXPECT_EQ((*flags)[0], "--tls-certificate");
  EXPECT_EQ(ReadFile((*flags)[1]), "c\n");
  EXPECT_EQ((*flags)[2], "--tls-key");
  EXPECT_EQ(ReadFile((*flags)[3]), "k\n");
  EXPECT_EQ((*flags)[4], "--tls-authority");
  EXPECT_EQ(ReadFile((*flags)[5]), made.authority);
}

TEST(Invitation, OtherLinesAreRefused) {
  for (const std::string line :
       {"", "x", "[]", "{}", "{\"scheduler\":\"h:1\"}",
        "{\"scheduler\":1,\"node\":\"\",\"slots\":1,\"authority\":\"\",\"certificate\":\"\","
        "\"key\":\"\"}"}) {
    EXPECT_FALSE(Invitation::Parse(line).ok()) << line;
  }
}

}  // namespace
}  // namespace ringd::cli
