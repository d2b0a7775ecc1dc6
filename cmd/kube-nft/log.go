package main

import (
	"bytes"
	"io"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// newLog returns a logger that writes to w, one line per entry.
func (o *options) newLog(w io.Writer) *zap.Logger {
	config := zap.NewProductionEncoderConfig()
	config.EncodeTime = zapcore.RFC3339NanoTimeEncoder
	config.EncodeDuration = zapcore.StringDurationEncoder
	encoder := zapcore.NewJSONEncoder(config)
	if o.LogFormat == "console" {
		encoder = zapcore.NewConsoleEncoder(config)
	}
	return zap.New(zapcore.NewCore(encoder, zapcore.Lock(zapcore.AddSync(w)), o.LogLevel))
}

// newDaemonLog returns such a logger that never waits for w.
func (o *options) newDaemonLog(w io.Writer) *zap.Logger {
	notice := func(dropped uint64) []byte {
		var line bytes.Buffer
		o.newLog(&line).Warn("log lines were dropped: nobody took them", zap.Uint64("lines", dropped))
		return line.Bytes()
	}
	return o.newLog(newLineWriter(w, notice))
}
