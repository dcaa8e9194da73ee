package topology

import (
	"bufio"
	"fmt"
	"io"
	"strings"
)

// Parse reads a topology in any of the forms that this package reads, and tells them by how they begin: XML of NCCL
// ([ParseXML]), JSON of gccl ([ParseJSON]) or the matrix of nvidia-smi topo -m ([ParseMatrix]).
func Parse(r io.Reader) (*Graph, error) {
	b := bufio.NewReader(r)
	for {
		c, _, err := b.ReadRune()
		if err == io.EOF {
			return nil, fmt.Errorf("read topology: the file is empty")
		}
		if err != nil {
			return nil, fmt.Errorf("read topology: %w", err)
		}
		if c == '\ufeff' { // an editor's byte order mark
			continue
		}
		if err := b.UnreadRune(); err != nil {
			return nil, fmt.Errorf("read topology: %w", err)
		}
		switch {
		case c == '<':
			return ParseXML(b)
		case c == '{':
			return ParseJSON(b)
		case !strings.ContainsRune("\r\n", c): // a matrix begins with a tab
			return ParseMatrix(b)
		}
		if _, err := b.Discard(1); err != nil {
			return nil, fmt.Errorf("read topology: %w", err)
		}
	}
}
