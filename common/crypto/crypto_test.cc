#include "common/crypto/crypto.h"

#include <gtest/gtest.h>

namespace ringd {
namespace {

TEST(CryptoTest, HmacSha256_Rfc4231Case2_MatchesPublishedValue) {
  EXPECT_EQ(HexEncode(HmacSha256("Jefe", "what do ya want for nothing?")),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
}

TEST(CryptoTest, RandomBytes_Twice_Differ) {
  EXPECT_EQ(RandomBytes(32).size(), 32u);
  EXPECT_NE(RandomBytes(32), RandomBytes(32));
}

TEST(CryptoTest, ConstantTimeEqual_OtherLengthOrByte_IsFalse) {
  EXPECT_TRUE(ConstantTimeEqual("abc", "abc"));
  EXPECT_FALSE(ConstantTimeEqual("abc", "abd"));
  EXPECT_FALSE(ConstantTimeEqual("abc", "abcd"));
}

class CertificateTest : public testing::Test {
 protected:
  void SetUp() override {
    authority_ = *CreateAuthority("test CA");
    node_ = *CreateCertificate(authority_, "node a", {"localhost", "127.0.0.1"}, "ringd://node/a");
  }
  KeyPair authority_, node_;
};

TEST_F(CertificateTest, VerifySignature_OwnMessage_IsAccepted) {
  const std::string signature = *Sign(node_.key_pem, "message");
  EXPECT_TRUE(
      VerifySignature(authority_.certificate_pem, node_.certificate_pem, "message", signature)
          .ok());
}

TEST_F(CertificateTest, VerifySignature_OneOfSeveralAuthorities_IsAccepted) {
  const std::string bundle =
      CreateAuthority("another")->certificate_pem + authority_.certificate_pem;
  const std::string signature = *Sign(node_.key_pem, "message");
  EXPECT_TRUE(VerifySignature(bundle, node_.certificate_pem, "message", signature).ok());
}

TEST_F(CertificateTest, VerifySignature_SignedByANode_IsRefused) {
  const KeyPair forged = *CreateCertificate(node_, "node b", {}, "ringd://node/b");
  const std::string signature = *Sign(forged.key_pem, "message");
  const std::string chain = forged.certificate_pem + node_.certificate_pem;
  EXPECT_EQ(VerifySignature(authority_.certificate_pem, chain, "message", signature).code(),
            absl::StatusCode::kUnauthenticated);
}

TEST_F(CertificateTest, VerifySignature_OtherMessageKeyOrAuthority_IsRefused) {
  const std::string signature = *Sign(node_.key_pem, "message");
  const auto code = [&](const std::string& ca, const std::string& message, const std::string& s) {
    return VerifySignature(ca, node_.certificate_pem, message, s).code();
  };
  EXPECT_EQ(code(authority_.certificate_pem, "other", signature),
            absl::StatusCode::kUnauthenticated);
  EXPECT_EQ(code(CreateAuthority("another")->certificate_pem, "message", signature),
            absl::StatusCode::kUnauthenticated);
  const KeyPair other = *CreateCertificate(authority_, "node b", {}, "ringd://node/b");
  EXPECT_EQ(code(authority_.certificate_pem, "message", *Sign(other.key_pem, "message")),
            absl::StatusCode::kUnauthenticated);
}

TEST_F(CertificateTest, CertificateUris_NodeCertificate_NamesTheNode) {
  EXPECT_EQ(*CertificateUris(node_.certificate_pem), std::vector<std::string>{"ringd://node/a"});
}

TEST_F(CertificateTest, CreateCertificate_NameWithSeparator_IsRefused) {
  EXPECT_FALSE(CreateCertificate(authority_, "x", {"a,DNS:evil"}, "ringd://node/x").ok());
}

TEST(CryptoInputTest, CertificateUris_Rubbish_IsInvalidArgument) {
  EXPECT_EQ(CertificateUris("rubbish").status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace ringd
