package settings

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// A Setting is one thing that can be set: its names, and the values that it takes.
type Setting struct {
	Name string // in a file, below a table with a dot: "memory.hugepage"
	Env  string // gccl's own variable
	// EnvOnly settings, those for tests, have no place in a file; Name is then only for people.
	EnvOnly bool

	Kind      Kind
	Low, High int64                   // the limits of a Whole
	Words     []string                // all that a Text may be, in lower case; nil: anything that Check takes
	Check     func(text string) error // of what Kind, limits and Words allow; nil: none

	// NCCL is the variable of NCCL's that means the same, or "". FromNCCL puts its value in our words, "" for one
	// that asks for the default; nil: the values are the same.
	NCCL     string
	FromNCCL func(text string) (string, error)

	Default string // for people: what holds when nothing is set
	Unused  string // why nothing obeys the setting in this build; "": it is obeyed
}

// Kind is the type that a value has in a file.
type Kind uint8

// The kinds.
const (
	Text Kind = iota
	Whole
	Switch
)

func (k Kind) String() string { return [...]string{"a text", "a whole number", "true or false"}[k] }

// parse checks a value as text, as variables have it, and returns it the way it is always written.
func (s *Setting) parse(text string) (string, error) {
	switch s.Kind {
	case Whole:
		n, err := strconv.ParseInt(strings.TrimSpace(text), 0, 64)
		if err != nil {
			return "", fmt.Errorf("%q is not a whole number; want %d to %d", text, s.Low, s.High)
		}
		return s.whole(n)
	case Switch:
		b, err := strconv.ParseBool(strings.ToLower(strings.TrimSpace(text)))
		if err != nil {
			return "", fmt.Errorf("%q; want true or false", text)
		}
		return strconv.FormatBool(b), nil
	}
	return s.text(text)
}

// fromNCCL puts a value of NCCL's in our words: "" for one that leaves the default, as an empty one does.
func (s *Setting) fromNCCL(value string) (text string, err error) {
	text = value
	if s.FromNCCL != nil && value != "" {
		text, err = s.FromNCCL(value)
	}
	if err != nil || text == "" {
		return "", err
	}
	return s.parse(text)
}

// take checks a value as a file has it.
func (s *Setting) take(value any) (string, error) {
	switch v := value.(type) {
	case string:
		if s.Kind == Text {
			return s.text(v)
		}
	case int64:
		if s.Kind == Whole {
			return s.whole(v)
		}
	case bool:
		if s.Kind == Switch {
			return strconv.FormatBool(v), nil
		}
	}
	return "", fmt.Errorf("is %s; want %s", describe(value), s.wants())
}

func (s *Setting) whole(n int64) (string, error) {
	if n < s.Low || n > s.High {
		return "", fmt.Errorf("%d; want %d to %d", n, s.Low, s.High)
	}
	return s.checked(strconv.FormatInt(n, 10))
}

func (s *Setting) text(text string) (string, error) {
	if s.Words != nil {
		word := strings.ToLower(strings.TrimSpace(text))
		if !slices.Contains(s.Words, word) {
			return "", fmt.Errorf("%q; %s", text, suggest(word, s.Words))
		}
		text = word
	}
	return s.checked(text)
}

func (s *Setting) checked(text string) (string, error) {
	if s.Check != nil {
		if err := s.Check(text); err != nil {
			return "", err
		}
	}
	return text, nil
}

func (s *Setting) wants() string {
	switch {
	case s.Kind == Whole:
		return fmt.Sprintf("a whole number from %d to %d", s.Low, s.High)
	case s.Words != nil:
		return "a text, one of " + strings.Join(s.Words, ", ")
	}
	return s.Kind.String()
}

// describe names the type of a file's value, with the value where it is short.
func describe(value any) string {
	switch v := value.(type) {
	case nil:
		return "null"
	case string:
		return fmt.Sprintf("the text %.40q", v)
	case int64:
		return fmt.Sprintf("the number %d", v)
	case float64:
		return fmt.Sprintf("the number %v", v)
	case bool:
		return fmt.Sprintf("the truth value %v", v)
	case table:
		return "a table"
	case []any:
		return "a list"
	}
	return "a date or time"
}
