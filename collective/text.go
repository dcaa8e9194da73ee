package collective

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

func (s Slot) String() string {
	if s.Space == Wire {
		return "wire"
	}
	return fmt.Sprintf("%v[%d]", s.Space, s.Chunk)
}

func (in Instr) String() string {
	srcs := make([]string, len(in.Srcs))
	for i, src := range in.Srcs {
		srcs[i] = src.String()
	}
	sum := strings.Join(srcs, " + ")
	switch in.Code {
	case Send:
		return fmt.Sprintf("send %d %s", in.Peer, sum)
	case Recv:
		return fmt.Sprintf("recv %d %v", in.Peer, in.Dst)
	case RecvReduce:
		return fmt.Sprintf("recvreduce %d %v = %s", in.Peer, in.Dst, sum)
	}
	return fmt.Sprintf("%v %v = %s", in.Code, in.Dst, sum)
}

// String prints the schedule as text that Parse reads:
//
//	all_reduce ranks=2 root=0 rank=1 pieces=1 temps=1
//	step
//	  send 0 in[0]
//	  recv 0 temp[0]
//	step
//	  fold out[0] = temp[0] + in[0]
func (s Schedule) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%v ranks=%d root=%d rank=%d pieces=%d temps=%d\n", s.Shape.Kind, s.Shape.Ranks, s.Shape.Root, s.Rank, s.Pieces, s.Temps)
	for _, step := range s.Steps {
		b.WriteString("step\n")
		for _, in := range step {
			fmt.Fprintf(&b, "  %v\n", in)
		}
	}
	return b.String()
}

// maxLine bounds a line of text: a fold of maxSources sources.
const maxLine = 2 << 20

// Parse reads what String prints: one schedule. Empty lines and what follows a # are
// ignored. An error names the line; the result has passed Check.
func Parse(r io.Reader) (Schedule, error) {
	var s Schedule
	sc := bufio.NewScanner(r)
	sc.Buffer(nil, maxLine)
	for line, head := 1, false; sc.Scan(); line++ {
		text, _, _ := strings.Cut(sc.Text(), "#")
		f := strings.Fields(text)
		if len(f) == 0 {
			continue
		}
		var err error
		switch {
		case !head:
			head, err = true, s.parseHead(f)
		case f[0] == "step" && len(f) == 1:
			s.Steps = append(s.Steps, nil)
		case len(s.Steps) == 0:
			err = fmt.Errorf("%q before the first step", f[0])
		default:
			var in Instr
			in, err = parseInstr(f)
			s.Steps[len(s.Steps)-1] = append(s.Steps[len(s.Steps)-1], in)
		}
		if err != nil {
			return Schedule{}, fmt.Errorf("collective: schedule line %d: %w", line, err)
		}
	}
	if err := sc.Err(); err != nil {
		return Schedule{}, fmt.Errorf("collective: schedule: %w", err)
	}
	if s.Shape.Ranks == 0 {
		return Schedule{}, errors.New("collective: schedule: no text, want a schedule")
	}
	if err := s.Check(); err != nil {
		return Schedule{}, err
	}
	return s, nil
}

func (s *Schedule) parseHead(f []string) (err error) {
	if s.Shape.Kind, err = ParseKind(f[0]); err != nil {
		return err
	}
	fields := map[string]*int{"ranks": &s.Shape.Ranks, "root": &s.Shape.Root, "rank": &s.Rank, "pieces": &s.Pieces, "temps": &s.Temps}
	for _, word := range f[1:] {
		name, value, _ := strings.Cut(word, "=")
		to, ok := fields[name]
		if !ok {
			return fmt.Errorf("%q, want ranks= root= rank= pieces= temps=, each once", word)
		}
		delete(fields, name)
		if *to, err = strconv.Atoi(value); err != nil || *to > 1<<24 {
			return fmt.Errorf("%q is not a number up to 2^24", word)
		}
	}
	if len(fields) > 0 {
		return fmt.Errorf("a schedule begins with KIND ranks= root= rank= pieces= temps=")
	}
	return nil
}

func parseInstr(f []string) (in Instr, err error) {
	i := slices.Index(codeNames[:Copy+1], f[0])
	if i < 0 {
		return in, fmt.Errorf("%q, want one of %v", f[0], codeNames[:Copy+1])
	}
	in.Code = Code(i)
	f = f[1:]
	if in.Code <= RecvReduce && len(f) > 0 {
		peer, err := strconv.ParseInt(f[0], 10, 32)
		if err != nil {
			return in, fmt.Errorf("peer %q is not a number", f[0])
		}
		in.Peer, f = int32(peer), f[1:]
	}
	if in.Code != Send {
		if len(f) == 0 {
			return in, fmt.Errorf("%v without a destination", in.Code)
		}
		if in.Dst, err = parseSlot(f[0]); err != nil {
			return in, err
		}
		f = f[1:]
		if in.Code != Recv {
			if len(f) == 0 || f[0] != "=" {
				return in, fmt.Errorf("%v without =", in.Code)
			}
			f = f[1:]
		}
	}
	for j, word := range f {
		if j%2 == 1 {
			if word != "+" || j == len(f)-1 {
				return in, fmt.Errorf("%q between sources, want +", word)
			}
			continue
		}
		src, err := parseSlot(word)
		if err != nil {
			return in, err
		}
		in.Srcs = append(in.Srcs, src)
	}
	return in, nil
}

func parseSlot(word string) (Slot, error) {
	if word == "wire" {
		return Slot{Space: Wire}, nil
	}
	name, rest, _ := strings.Cut(word, "[")
	i := slices.Index(spaceNames[:Temp+1], name)
	digits, ok := strings.CutSuffix(rest, "]")
	chunk, err := strconv.ParseInt(digits, 10, 32)
	if i < 0 || !ok || err != nil {
		return Slot{}, fmt.Errorf("slot %q, want in[N], out[N], temp[N] or wire", word)
	}
	return Slot{Space(i), int32(chunk)}, nil
}
