package topology

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
)

// Fact is something read from a host, or the reason why it is not known. Its zero value is unknown, without a reason.
type Fact[T any] struct {
	value   T
	known   bool
	unknown string
}

// Known returns a fact.
func Known[T any](v T) Fact[T] { return Fact[T]{value: v, known: true} }

// Unknown returns the reason why there is none.
func Unknown[T any](format string, args ...any) Fact[T] {
	return Fact[T]{unknown: fmt.Sprintf(format, args...)}
}

// Get returns the value and whether it is known.
func (f Fact[T]) Get() (T, bool) { return f.value, f.known }

// Or returns the value, or another if it is not known.
func (f Fact[T]) Or(other T) T {
	if f.known {
		return f.value
	}
	return other
}

// Why returns the reason why the value is not known, "" if it is.
func (f Fact[T]) Why() string {
	if f.known {
		return ""
	}
	if f.unknown == "" {
		return "not looked at"
	}
	return f.unknown
}

// String returns the value, or "unknown: " and the reason.
func (f Fact[T]) String() string {
	if f.known {
		return fmt.Sprint(f.value)
	}
	return "unknown: " + f.Why()
}

type unknownJSON struct {
	Unknown *string `json:"unknown"`
}

// MarshalJSON gives the value, or {"unknown": "the reason"}.
func (f Fact[T]) MarshalJSON() ([]byte, error) {
	if f.known {
		return json.Marshal(f.value)
	}
	why := f.Why()
	return json.Marshal(unknownJSON{&why})
}

// UnmarshalJSON reads what [Fact.MarshalJSON] wrote.
func (f *Fact[T]) UnmarshalJSON(b []byte) error {
	var u unknownJSON
	if json.Unmarshal(b, &u) == nil && u.Unknown != nil {
		*f = Fact[T]{unknown: *u.Unknown}
		return nil
	}
	*f = Fact[T]{known: true}
	return json.Unmarshal(b, &f.value)
}

// factOf is v, or the reason that err gives.
func factOf[T any](v T, err error) Fact[T] {
	if err != nil {
		return Unknown[T]("%s", reason(err))
	}
	return Known(v)
}

// then goes on from one fact to the next.
func then[T, U any](f Fact[T], next func(T) (U, error)) Fact[U] {
	if !f.known {
		return Unknown[U]("%s", f.Why())
	}
	return factOf(next(f.value))
}

// reason says what went wrong with a file in words.
func reason(err error) string {
	var path *fs.PathError
	if errors.As(err, &path) {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return "there is no /" + path.Path
		case errors.Is(err, fs.ErrPermission):
			return "may not read /" + path.Path
		}
		return "/" + path.Path + ": " + path.Err.Error()
	}
	return err.Error()
}
