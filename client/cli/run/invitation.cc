#include "client/cli/run/invitation.h"

#include <sys/stat.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "client/cli/output/file_text.h"
#include "common/crypto/crypto.h"
#include "common/status/macros.h"
#include "nlohmann/json.hpp"

namespace ringd::cli {
namespace {

constexpr mode_t kPrivate = 0600;
constexpr char kSchedulerUri[] = "ringd://scheduler";

}  // namespace

std::string InvitedNodeName(size_t index) { return absl::StrCat("node-", index); }

std::string Invitation::ToLine() const {
  return nlohmann::json{
      {"scheduler", scheduler},     {"node", node}, {"slots", slots}, {"authority", authority},
      {"certificate", certificate}, {"key", key}}
      .dump();
}

absl::StatusOr<Invitation> Invitation::Parse(const std::string& line) {
  const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  Invitation invitation;
  const std::pair<const char*, std::string*> texts[] = {{"scheduler", &invitation.scheduler},
                                                        {"node", &invitation.node},
                                                        {"authority", &invitation.authority},
                                                        {"certificate", &invitation.certificate},
                                                        {"key", &invitation.key}};
  bool good = json.is_object() && json.contains("slots") && json["slots"].is_number_integer();
  for (const auto& [name, text] : texts) {
    good = good && json.contains(name) && json[name].is_string();
    if (good) *text = json[name].get<std::string>();
  }
  if (!good) {
    return absl::InvalidArgumentError(
        "standard input has no invitation: 'ringctl run --guests' makes them");
  }
  invitation.slots = json["slots"].get<int>();
  return invitation;
}

absl::StatusOr<std::vector<std::string>> Invitation::WriteTo(const std::string& folder) const {
  const std::string stem = absl::StrCat(folder, "/", node);
  RINGD_RETURN_IF_ERROR(WriteFileText(stem + ".ca.pem", authority, kPrivate));
  RINGD_RETURN_IF_ERROR(WriteFileText(stem + ".pem", certificate, kPrivate));
  RINGD_RETURN_IF_ERROR(WriteFileText(stem + ".key", key, kPrivate));
  return std::vector<std::string>{"--tls-certificate", stem + ".pem",     "--tls-key",
                                  stem + ".key",       "--tls-authority", stem + ".ca.pem"};
}

absl::StatusOr<std::vector<Invitation>> Invite(const std::string& host, int port,
                                               const std::vector<int>& slots) {
  RINGD_ASSIGN_OR_RETURN(const KeyPair authority, CreateAuthority("ringd run"));
  std::vector<Invitation> invitations;
  for (size_t i = 0; i <= slots.size(); ++i) {
    const bool is_scheduler = i == slots.size();
    Invitation invitation;
    invitation.scheduler = absl::StrCat(host, ":", port);
    invitation.node = is_scheduler ? "scheduler" : InvitedNodeName(i);
    invitation.slots = is_scheduler ? 0 : slots[i];
    invitation.authority = authority.certificate_pem;
    const std::string uri =
        is_scheduler ? kSchedulerUri : absl::StrCat("ringd://node/", invitation.node);
    RINGD_ASSIGN_OR_RETURN(
        KeyPair pair, CreateCertificate(authority, invitation.node,
                                        {is_scheduler ? host : invitation.node, "localhost"}, uri));
    invitation.certificate = std::move(pair.certificate_pem);
    invitation.key = std::move(pair.key_pem);
    invitations.push_back(std::move(invitation));
  }
  return invitations;
}

}  // namespace ringd::cli
