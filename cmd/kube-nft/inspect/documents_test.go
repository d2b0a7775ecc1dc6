package inspect

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/kube-nft/kube-nft/cmd/kube-nft/output"
	"github.com/kube-nft/kube-nft/conntrack"
	"github.com/kube-nft/kube-nft/nft"
)

// TestDocumentsReadBack: a document that was read from JSON, as kubectl kube-nft reads it, has the text that the node
// prints.
func TestDocumentsReadBack(t *testing.T) {
	at := time.Date(2026, 11, 20, 10, 58, 1, 500, time.UTC)
	seconds, rate := 0.0164, 2.5
	flow := &EndedConnection{
		TypeMeta: output.Kind("EndedConnection"), Origin: Origin{Time: at}, Namespace: "shop", Service: "web", Port: "http",
		Protocol: "tcp",
		Frontend: "198.51.100.80:80", Client: "192.0.2.9:43598", Endpoint: "10.244.0.20:8080",
		Sent: &conntrack.Counter{Packets: 6, Bytes: 321}, Seconds: &seconds,
	}
	top := &Top{
		TypeMeta: output.Kind("Top"), Time: at, IntervalSeconds: 2, Counted: true, Budget: 9, New: &rate, Active: 3,
		Refused: map[string]float64{"source-range": 1}, Omitted: 2,
		Services: []*TopService{{Namespace: "shop", Name: "web", New: &rate, Active: 3}},
	}
	packet := &TracedPacket{
		TypeMeta: output.Kind("TracedPacket"), Origin: Origin{Time: at}, Source: "192.0.2.9:1",
		Destination: "10.96.0.80:80", Protocol: "tcp", Service: "shop/web:http", Frontend: "cluster IP",
		Policy: "all endpoints", Outcome: "dropped", Cut: true,
		Steps: []TraceStep{{Family: "ip", Table: nft.TableName, Chain: "pick-4", Rule: "dnat", Verdict: "accept"},
			{Family: "inet", Table: "fw", Chain: "forward", Handle: 2, Verdict: "drop"}},
	}
	for _, tt := range []struct {
		document output.Document
		want     string
	}{
		{flow, "10:58:01  shop/web:http             198.51.100.80:80/tcp    192.0.2.9:43598        10.244.0.20:8080  " +
			"               6/321                -  16ms\n"},
		{&LostConnections{output.Kind("LostConnections"), Origin{Time: at}, 7},
			"10:58:01  7 connections are missing here: flows was too slow to read of them\n"},
		{top, `10:58:01, 2.0 s: 3 Services, 2.5 new connections a second, at least 3 active
refused a second on this node: source-range 1.0
ACTIVE is incomplete: there are more than 9 conntrack entries; raise --budget to read more

SERVICE   NEW/S  ACTIVE  REFUSED/S
shop/web  2.5    3       -
and 2 more Services; --rows 0 shows all
`},
		{packet, `10:58:01.000000 192.0.2.9:1 -> 10.96.0.80:80/tcp
  cluster IP of Service shop/web:http: all endpoints
    pick-4           dnat: accept
    inet fw forward  handle 2: drop
    ... more than 500 steps
  dropped

`},
	} {
		var line strings.Builder
		form := output.Form{Value: output.JSON}
		read := reflect.New(reflect.TypeOf(tt.document).Elem()).Interface().(output.Document)
		if err := form.WriteNext(&line, tt.document); err != nil || strings.Count(line.String(), "\n") != 1 {
			t.Fatalf("%v, %s", err, &line)
		}
		if err := json.Unmarshal([]byte(line.String()), read); err != nil {
			t.Fatal(err)
		}
		if _, isEvent := tt.document.(Event); isEvent {
			event, err := ReadEvent([]byte(line.String()))
			if err != nil || !event.At().Time.Equal(at) {
				t.Fatalf("%v, %+v", err, event)
			}
			read = event
		}
		if got := read.Text(); got != tt.want {
			t.Errorf("got\n%s\nwant\n%s", got, tt.want)
		}
	}
}
