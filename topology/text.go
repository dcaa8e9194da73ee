package topology

import "io/fs"

// ReadText reads a small file below root, such as an attribute in /sys, without the white space around it. The reason why it is
// unknown names the file.
func ReadText(root fs.FS, name string) Fact[string] { return sysfs{root}.text(name) }
