package comm

import (
	"fmt"
	"log/slog"
	"os"
	"strings"
)

// stderrLogger returns a logger for a level of GCCL_DEBUG. NCCL's words are understood, too.
func stderrLogger(level string) (*slog.Logger, error) {
	levels := map[string]slog.Level{"debug": slog.LevelDebug, "trace": slog.LevelDebug, "info": slog.LevelInfo, "version": slog.LevelInfo, "warn": slog.LevelWarn, "error": slog.LevelError}
	l, ok := levels[strings.ToLower(level)]
	if !ok {
		return nil, fmt.Errorf("comm: GCCL_DEBUG=%q, want debug, info, warn or error", level)
	}
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: l})), nil
}
