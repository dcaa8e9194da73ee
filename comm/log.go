package comm

import (
	"fmt"
	"log/slog"
	"os"
)

// logWords are the levels that GCCL_DEBUG may ask for.
var logWords = []string{"debug", "info", "warn", "error"}

// stderrLogger returns a logger for one of the levels.
func stderrLogger(word string) *slog.Logger {
	levels := map[string]slog.Level{"debug": slog.LevelDebug, "info": slog.LevelInfo, "warn": slog.LevelWarn, "error": slog.LevelError}
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: levels[word]}))
}

// nameOf is an id as errors, records and log lines have it, those of bootstrap too: one word finds all that a communicator says.
func nameOf(id uint64) string { return fmt.Sprintf("%016x", id) }

// logger returns a logger for what is said of a communicator.
func logger(to *slog.Logger, id uint64, rank, size int) *slog.Logger {
	return to.With("comm", nameOf(id), "rank", rank, "size", size)
}

// logOf is for a communicator of the family: what those made by Split, Shrink and the like say also has the name of the world's, by
// which all lines of a job are found.
func (f *family) logOf(id uint64, rank, size int) *slog.Logger {
	if id == f.id {
		return f.log
	}
	return logger(f.cfg.Logger, id, rank, size).With("world", nameOf(f.id))
}
