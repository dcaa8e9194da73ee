package comm

import (
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
