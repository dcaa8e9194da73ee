package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

// interruptedError is the end of a command that got a signal. Its status is what a shell gives a command that the signal ended.
type interruptedError struct{ by syscall.Signal }

func (e *interruptedError) Error() string {
	return fmt.Sprintf("ended by signal %d (%v)", int(e.by), e.by)
}

// untilSignal runs f with a context that ends with the first signal that asks to end; f's error then is an [*interruptedError], too.
func untilSignal(ctx context.Context, f func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer signal.Stop(signals)
	go func() {
		select {
		case s := <-signals:
			cancel(&interruptedError{s.(syscall.Signal)})
		case <-ctx.Done():
		}
	}()
	err := f(ctx)
	var interrupted *interruptedError
	if err == nil || errors.As(err, &interrupted) || !errors.As(context.Cause(ctx), &interrupted) {
		return err
	}
	return fmt.Errorf("%w: %w", interrupted, err)
}
