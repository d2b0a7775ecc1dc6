package config

import "testing"

func TestVersionOf(t *testing.T) {
	for _, c := range []struct{ archive, module, want string }{
		{"$Format:%(describe:tags,match=v*)$\n", "v0.2.0", "v0.2.0"},                       // a clone
		{"v0.2.0\n", "(devel)", "v0.2.0"},                                                  // the archive of a tag
		{"v0.2.0-3-g1234567\n", "(devel)", "v0.2.0-3-g1234567"},                            // of a commit after one
		{"\n", "v0.0.0-20261122122021-ccfb35265a5b", "v0.0.0-20261122122021-ccfb35265a5b"}, // of a repository without tags
	} {
		if got := versionOf(c.archive, c.module); got != c.want {
			t.Errorf("archive %q, module %q: got %s, want %s", c.archive, c.module, got, c.want)
		}
	}
}
