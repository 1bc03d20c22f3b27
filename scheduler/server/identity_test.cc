#include "scheduler/server/identity.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "common/crypto/crypto.h"

namespace ringd::scheduler {
namespace {

using ringd::cluster::v1::Identity;
using testing::HasSubstr;

class IdentityTest : public testing::Test {
 protected:
  IdentityTest() : authority_(*CreateAuthority("test")) {
    node_ = *CreateCertificate(authority_, "a", {"localhost"}, "ringd://node/a");
    Identities::Options options;
    options.authority_pem = authority_.certificate_pem;
    options.own_uid = 555;
    identities_ = std::make_unique<Identities>(options);
  }

  Identity Signed(uint32_t uid, absl::Time at, const KeyPair& pair, const std::string& node = "a") {
    Identity identity;
    identity.set_user("alice");
    identity.set_uid(uid);
    identity.set_gid(uid);
    identity.set_time_us(absl::ToUnixMicros(at));
    identity.set_node(node);
    identity.set_nonce(RandomBytes(16));
    identity.set_certificate(pair.certificate_pem);
    identity.set_signature(*Sign(pair.key_pem, IdentityMessage(identity)));
    return identity;
  }
  std::string ErrorOf(const Identity& identity, absl::Time now) {
    const auto caller = identities_->Identify(PeerInfo{}, identity, now);
    EXPECT_EQ(caller.status().code(), absl::StatusCode::kPermissionDenied);
    return std::string(caller.status().message());
  }

  const absl::Time now_ = absl::Now();
  KeyPair authority_;
  KeyPair node_;
  std::unique_ptr<Identities> identities_;
};

TEST_F(IdentityTest, IdentityMessage_IsTheOneOfTheContract) {
  Identity identity;
  identity.set_user("bob");
  identity.set_uid(1001);
  identity.set_gid(100);
  identity.set_nonce(std::string("\x01\xab", 2));
  identity.set_time_us(12345);
  identity.set_node("n1");
  EXPECT_EQ(IdentityMessage(identity), "ringd-identity|bob|1001|100|01ab|12345|n1");
}

TEST_F(IdentityTest, Identify_SignedByANode_IsTaken) {
  const auto caller = identities_->Identify(PeerInfo{}, Signed(1000, now_, node_), now_);
  ASSERT_TRUE(caller.ok()) << caller.status();
  EXPECT_EQ(caller->uid, 1000u);
  EXPECT_EQ(caller->user, "alice");
  EXPECT_FALSE(caller->privileged);
}

TEST_F(IdentityTest, Identify_SameNonceTwice_IsRefused) {
  const Identity identity = Signed(1000, now_, node_);
  ASSERT_TRUE(identities_->Identify(PeerInfo{}, identity, now_).ok());
  EXPECT_THAT(ErrorOf(identity, now_), HasSubstr("used already"));
  EXPECT_THAT(ErrorOf(identity, now_ + absl::Seconds(59)), HasSubstr("used already"));
}

TEST_F(IdentityTest, Identify_OutsideItsWindow_IsRefused) {
  EXPECT_THAT(ErrorOf(Signed(1000, now_ - absl::Seconds(61), node_), now_), HasSubstr("clock"));
  EXPECT_THAT(ErrorOf(Signed(1000, now_ + absl::Seconds(61), node_), now_), HasSubstr("clock"));
}

TEST_F(IdentityTest, Identify_ChangedAfterSigning_IsRefused) {
  Identity identity = Signed(1000, now_, node_);
  identity.set_uid(0);
  EXPECT_THAT(ErrorOf(identity, now_), HasSubstr("does not hold"));
}

TEST_F(IdentityTest, Identify_ForeignAuthority_IsRefused) {
  const KeyPair other = *CreateAuthority("other");
  const KeyPair pair = *CreateCertificate(other, "a", {"localhost"}, "ringd://node/a");
  EXPECT_THAT(ErrorOf(Signed(1000, now_, pair), now_), HasSubstr("does not hold"));
}

TEST_F(IdentityTest, Identify_OtherNodesName_IsRefused) {
  EXPECT_THAT(ErrorOf(Signed(1000, now_, node_, "b"), now_), HasSubstr("not node b's"));
}

TEST_F(IdentityTest, Identify_NamesThatWouldBlurTheMessage_AreRefused) {
  Identity identity = Signed(1000, now_, node_);
  identity.set_user("alice|0");
  EXPECT_THAT(ErrorOf(identity, now_), HasSubstr("no proper name"));
}

TEST_F(IdentityTest, Identify_Nothing_SaysWhatToDo) {
  EXPECT_THAT(ErrorOf(Identity(), now_), HasSubstr("no identity"));
}

TEST_F(IdentityTest, Identify_UnixSocket_TakesTheCredentials) {
  PeerInfo peer;
  peer.unix_socket = true;
  peer.credentials.uid = 555;
  Identity claim;
  claim.set_uid(0);
  const auto caller = identities_->Identify(peer, claim, now_);
  ASSERT_TRUE(caller.ok());
  EXPECT_EQ(caller->uid, 555u);
  EXPECT_TRUE(caller->privileged);
  peer.credentials.uid = 1000;
  EXPECT_FALSE(identities_->Identify(peer, claim, now_)->privileged);
}

TEST_F(IdentityTest, Identify_WithoutAuthority_TakesClaimsOnlyWhereInsecure) {
  Identity claim;
  claim.set_user("bob");
  claim.set_uid(1001);
  Identities strict(Identities::Options{});
  EXPECT_EQ(strict.Identify(PeerInfo{}, claim, now_).status().code(),
            absl::StatusCode::kPermissionDenied);
  Identities::Options options;
  options.insecure = true;
  Identities lax(options);
  EXPECT_EQ(lax.Identify(PeerInfo{}, claim, now_)->uid, 1001u);
}

TEST_F(IdentityTest, CheckNode_Certificate_MustSayTheName) {
  PeerInfo peer;
  peer.uris = {"ringd://node/a"};
  EXPECT_TRUE(identities_->CheckNode(peer, "a").ok());
  EXPECT_THAT(std::string(identities_->CheckNode(peer, "b").message()),
              HasSubstr("says ringd://node/a"));
  EXPECT_FALSE(identities_->CheckNode(PeerInfo{}, "a").ok());
}

TEST_F(IdentityTest, CheckNode_UnixSocket_MustBeOurOwnUser) {
  PeerInfo peer;
  peer.unix_socket = true;
  peer.credentials.uid = 1000;
  EXPECT_FALSE(identities_->CheckNode(peer, "a").ok());
  peer.credentials.uid = 555;
  EXPECT_TRUE(identities_->CheckNode(peer, "a").ok());
}

}  // namespace
}  // namespace ringd::scheduler
