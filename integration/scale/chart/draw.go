package main

import (
	"fmt"
	"image/color"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// A series is a line of points. A floor is drawn dashed and grey: nothing can be below it.
type series struct {
	name  string
	floor bool
	y     []float64 // one for each x of the chart; NaN: not measured
}

// A chart shows durations by number of Services, both axes logarithmic; or other numbers, from zero.
type chart struct {
	title  string
	linear bool      // the numbers are no durations
	x      []float64 // numbers of Services, above zero; at least one
	series []series
}

// Size of a chart. The margin keeps labels inside that a viewer draws in a wider font.
const (
	width  = 18 * vg.Centimeter
	height = 11 * vg.Centimeter
	margin = 3 * vg.Millimeter
)

// colors are for the series in order; floors have greys. Readers who do not see red and green
// alike can tell them apart.
var (
	colors = []color.Color{color.RGBA{0, 90, 181, 255}, color.RGBA{220, 50, 32, 255}, color.RGBA{64, 176, 166, 255}}
	greys  = []color.Color{color.Gray{70}, color.Gray{120}, color.Gray{165}}
)

// write draws the chart into an SVG file.
func (c *chart) write(path string) error {
	p := plot.New()
	p.Title.Text, p.X.Label.Text = c.title, "Services"
	p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, plot.ConstantTicks(c.sizeTicks())
	if !c.linear {
		p.Y.Scale, p.Y.Tick.Marker = plot.LogScale{}, plot.TickerFunc(durationTicks)
	}
	p.BackgroundColor = color.White
	p.Legend.Top, p.Legend.Left = true, true
	p.Legend.YOffs, p.Legend.XOffs = -2*vg.Millimeter, 3*vg.Millimeter
	p.Legend.Padding = vg.Millimeter
	p.Add(plotter.NewGrid())
	ours, floors := 0, 0
	for _, s := range c.series {
		style, dashes := colors[ours%len(colors)], []vg.Length(nil)
		if s.floor {
			style, dashes = greys[floors%len(greys)], []vg.Length{vg.Points(4), vg.Points(3)}
			floors++
		} else {
			ours++
		}
		if err := c.add(p, s, style, dashes); err != nil {
			return fmt.Errorf("chart %s: %s: %w", filepath.Base(path), s.name, err)
		}
	}
	p.X.Min, p.X.Max = 0.9*slices.Min(c.x), 1.1*slices.Max(c.x)
	p.Y.Min, p.Y.Max = c.bounds()
	return save(p, path)
}

// add draws one series.
func (c *chart) add(p *plot.Plot, s series, style color.Color, dashes []vg.Length) error {
	var points plotter.XYs
	for i, y := range s.y {
		if y > 0 || c.linear && y == 0 {
			points = append(points, plotter.XY{X: c.x[i], Y: y})
		}
	}
	if len(points) == 0 {
		return nil
	}
	line, marks, err := plotter.NewLinePoints(points)
	if err != nil {
		return err
	}
	line.Color, line.Width, line.Dashes = style, vg.Points(1.6), dashes
	marks.Color, marks.Shape = style, draw.CircleGlyph{}
	p.Add(line, marks)
	p.Legend.Add(s.name, line, marks)
	return nil
}

// bounds are the next powers of ten around all points, or zero and the highest, and room for the legend above.
func (c *chart) bounds() (low, high float64) {
	low, high = math.Inf(1), 0
	for _, s := range c.series {
		for _, y := range s.y {
			if y > 0 {
				low, high = min(low, y), max(high, y)
			}
		}
	}
	switch {
	case high == 0:
		return 1e-3, 1
	case c.linear:
		return 0, 1.5 * high
	}
	return math.Pow(10, math.Floor(math.Log10(low))), math.Pow(10, math.Ceil(math.Log10(high))+1)
}

func (c *chart) sizeTicks() []plot.Tick {
	ticks := make([]plot.Tick, len(c.x))
	for i, x := range c.x {
		ticks[i] = plot.Tick{Value: x, Label: strconv.FormatFloat(x, 'f', -1, 64)}
	}
	return ticks
}

// durationTicks labels the powers of ten.
func durationTicks(low, high float64) (ticks []plot.Tick) {
	for exponent := int(math.Floor(math.Log10(low))); exponent <= int(math.Ceil(math.Log10(high))); exponent++ {
		value := math.Pow(10, float64(exponent))
		ticks = append(ticks, plot.Tick{Value: value, Label: duration(exponent)})
	}
	return ticks
}

// duration spells a power of ten of a second.
func duration(exponent int) string {
	for _, unit := range []struct {
		name     string
		exponent int
	}{{"s", 0}, {"ms", -3}, {"µs", -6}} {
		if exponent >= unit.exponent {
			return fmt.Sprintf("%.0f %s", math.Pow(10, float64(exponent-unit.exponent)), unit.name)
		}
	}
	return fmt.Sprintf("%.0f ns", math.Pow(10, float64(exponent+9)))
}

func save(p *plot.Plot, path string) (err error) {
	canvas := vgsvg.New(width, height)
	p.Draw(draw.Crop(draw.New(canvas), margin, -2*margin, margin, -margin))
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() {
		if closeErr := file.Close(); err == nil {
			err = closeErr
		}
	}()
	_, err = canvas.WriteTo(file)
	return err
}
