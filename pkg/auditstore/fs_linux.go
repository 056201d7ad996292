package auditstore

import "golang.org/x/sys/unix"

// networkFS names the file system of a directory if it is one whose locks, syncs
// or memory maps are not those of a local disk, else "".
func networkFS(dir string) (string, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return "", err
	}
	switch uint32(st.Type) {
	case unix.NFS_SUPER_MAGIC:
		return "nfs", nil
	case unix.SMB_SUPER_MAGIC, unix.SMB2_SUPER_MAGIC, unix.CIFS_SUPER_MAGIC:
		return "smb", nil
	case unix.FUSE_SUPER_MAGIC:
		return "fuse", nil
	case unix.V9FS_MAGIC:
		return "9p", nil
	case unix.CEPH_SUPER_MAGIC:
		return "ceph", nil
	case unix.AFS_SUPER_MAGIC, unix.AFS_FS_MAGIC:
		return "afs", nil
	case unix.CODA_SUPER_MAGIC:
		return "coda", nil
	case 0x0bd00bd0:
		return "lustre", nil
	case 0x47504653:
		return "gpfs", nil
	}
	return "", nil
}
