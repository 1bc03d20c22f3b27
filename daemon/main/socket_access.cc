#include "daemon/main/socket_access.h"

#include <endian.h>
#include <linux/posix_acl.h>
#include <linux/posix_acl_xattr.h>
#include <sys/xattr.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace ringd::daemon {
namespace {

constexpr char kAttribute[] = "system.posix_acl_access";
constexpr uint16_t kReadWrite = ACL_READ | ACL_WRITE;

void AddEntry(uint16_t tag, uint16_t permissions, uint32_t id, std::string* list) {
  posix_acl_xattr_entry entry{};
  entry.e_tag = htole16(tag);
  entry.e_perm = htole16(permissions);
  entry.e_id = htole32(id);
  list->append(reinterpret_cast<const char*>(&entry), sizeof(entry));
}

}  // namespace

absl::Status GrantSocket(const std::string& path, const std::set<uint32_t>& users) {
  posix_acl_xattr_header header{};
  header.a_version = htole32(POSIX_ACL_XATTR_VERSION);
  std::string list(reinterpret_cast<const char*>(&header), sizeof(header));
  constexpr uint32_t kNone = static_cast<uint32_t>(ACL_UNDEFINED_ID);
  AddEntry(ACL_USER_OBJ, kReadWrite, kNone, &list);
  for (const uint32_t user : users) AddEntry(ACL_USER, kReadWrite, user, &list);  // Sorted.
  AddEntry(ACL_GROUP_OBJ, 0, kNone, &list);
  if (!users.empty()) AddEntry(ACL_MASK, kReadWrite, kNone, &list);
  AddEntry(ACL_OTHER, 0, kNone, &list);
  if (setxattr(path.c_str(), kAttribute, list.data(), list.size(), 0) == 0) return absl::OkStatus();
  if (errno == ENOENT) return absl::NotFoundError(path);
  return absl::UnavailableError(
      absl::StrCat("no access control list on ", path, ": ", strerror(errno)));
}

}  // namespace ringd::daemon
