package tracker

import (
	"net/netip"
	"reflect"
	"slices"
	"testing"
	"time"
	"unsafe"
)

// TestEqualComparesEveryField: a field that Equal forgets would never be programmed if it changes alone.
func TestEqualComparesEveryField(t *testing.T) {
	checkEqual(t, (*ServicePort).Equal)
	checkEqual(t, (*Lists).equal, "placed")
	if noLists.equal(noLists.numbered(nil)) {
		t.Error("lists that are still to be made equal those without endpoints")
	}
	checkEqual(t, (*Node).Equal)
	checkEqual(t, (*service).equal)
	checkEqual(t, func(f, g *front) bool { return f.equal(*g) })
}

// checkEqual compares a zero value with one that differs in one field, for each field but some.
func checkEqual[T any](t *testing.T, equal func(a, b *T) bool, but ...string) {
	t.Helper()
	zero := func() *T { // with what it points to
		v := reflect.New(reflect.TypeFor[T]())
		for i := range v.Elem().NumField() {
			if f := v.Elem().Field(i); f.Kind() == reflect.Pointer && f.CanSet() {
				f.Set(reflect.New(f.Type().Elem()))
			}
		}
		return v.Interface().(*T)
	}
	if !equal(zero(), zero()) {
		t.Errorf("%T: two zero values differ", *new(T))
	}
	for i := range reflect.TypeFor[T]().NumField() {
		if slices.Contains(but, reflect.TypeFor[T]().Field(i).Name) {
			continue
		}
		changed := zero()
		set(reflect.ValueOf(changed).Elem().Field(i))
		if equal(zero(), changed) {
			t.Errorf("%T: a change of %s makes no difference", *changed, reflect.TypeFor[T]().Field(i).Name)
		}
	}
}

// set gives a variable a value that is not zero.
func set(v reflect.Value) {
	v = reflect.NewAt(v.Type(), unsafe.Pointer(v.UnsafeAddr())).Elem() // a field may be unexported
	addr := netip.MustParseAddr("192.0.2.1")
	for _, known := range []any{addr, netip.AddrPortFrom(addr, 1), netip.PrefixFrom(addr, 32), time.Unix(1, 0)} {
		if v.Type() == reflect.TypeOf(known) {
			v.Set(reflect.ValueOf(known))
			return
		}
	}
	switch v.Kind() {
	case reflect.Struct:
		set(v.Field(0))
	case reflect.Pointer:
		set(v.Elem())
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		set(v.Index(0))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.String:
		v.SetString("x")
	default:
		v.Set(reflect.ValueOf(1).Convert(v.Type()))
	}
}
