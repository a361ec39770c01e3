"""Whether scripts and jobs survive: `script/` checks a script, `chaos/` disturbs jobs and checks the invariants."""
