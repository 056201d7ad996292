package e2e

import (
	"encoding/json"
	"fmt"
	"strings"
)

const jwtHead = "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9"

// textFormats are ways to write a secret in text that the rules promise to see.
var textFormats = []func(string) string{
	func(s string) string { return "Bearer " + s },
	func(s string) string { return "Authorization: Bearer " + s },
	func(s string) string { return "authorization: bearer " + s },
	func(s string) string { return "curl -H 'Authorization: BEARER  " + s + "'" },
	func(s string) string { return "sk-" + s },
	func(s string) string { return "sk-proj-" + s + "_A-b" },
	func(s string) string { return "key:sk-ant-" + s },
	func(s string) string { return "api_key=" + s },
	func(s string) string { return "api-key = " + s },
	func(s string) string { return "apikey=" + s },
	func(s string) string { return `API_KEY="` + s + `"` },
	func(s string) string { return "X-Api-Key=" + s },
	func(s string) string { return "token=" + s },
	func(s string) string { return "access_token='" + s + "'" },
	func(s string) string { return `refresh_token = "` + s + ` with blanks"` },
	func(s string) string { return "GET /v1/items?token=" + s + "&page=1" },
	func(s string) string { return "https://h.example/cb?code=1&client_secret=" + s },
	func(s string) string { return "session_token=" + s + "; Path=/" },
	func(s string) string { return "token=Bearer " + s },
	func(s string) string { return "secret=" + s },
	func(s string) string { return `{"client_secret": "` + s + `"}` },
	func(s string) string { return "password=" + s },
	func(s string) string { return "export DB_PASSWORD=" + s },
	func(s string) string { return "password = '" + s + "'" },
	func(s string) string { return `{"password":"` + s + `"}` },
	func(s string) string { return "{'password': '" + s + "'}" },
	func(s string) string { return `{"body":"{\"token\":\"` + s + `\"}"}` },
	func(s string) string { return "Server=h;User=u;Password=" + s + ";" },
	func(s string) string { return "A=1\nSECRET=" + s + "\nB=2" },
	func(s string) string { return jwtHead + ".eyJzdWIiOiIxMjM0NTY3ODkw" + s + "." + jwtHead },
	func(s string) string { return "Cookie: jwt=" + jwtHead + "." + jwtHead + "." + s + s },
	func(s string) string { return "AKIA" + strings.ToUpper(s) },
	func(s string) string { return "ghp_" + s },
	func(s string) string { return "https://github_pat_" + s + "@git.example" },
}

// jsonFormats are ways to put a secret into JSON. Keys say that it is one, whatever it looks like.
var jsonFormats = []func(string) any{
	func(s string) any { return map[string]any{"api-key": s} },
	func(s string) any { return []any{map[string]any{"deep": map[string]any{"Authorization": s}}} },
	func(s string) any { return map[string]any{"credentials": map[string]any{"user": s, "all": []any{s}}} },
	func(s string) any { return map[string]any{"clientSecrets": []any{1, s}} },
	func(s string) any { return map[string]any{"json": `{"list":[{"dbPassword":"` + s + `"}]}`} },
	func(s string) any { return map[string]any{"json": `{"json":"{\"id_token\":\"` + s + `\"}"}`} },
}

// A nest makes canaries: secrets that are found again wherever they come out.
type nest struct{ birds []string }

// hatch is a new secret that no other is part of. It has what the shapes ask for: letters and digits, 20 of them.
func (n *nest) hatch() string {
	s := fmt.Sprintf("cnry%04dabcdefgh%04d", len(n.birds), len(n.birds))
	n.birds = append(n.birds, s)
	return s
}

// texts are secrets in formats of text, one in each.
func (n *nest) texts(formats []func(string) string) []string {
	out := make([]string, len(formats))
	for i, format := range formats {
		out[i] = format(n.hatch())
	}
	return out
}

// text holds all formats of text, short half of them: for what is bounded.
func (n *nest) text() string { return strings.Join(n.texts(textFormats), "\n and \n") }

func (n *nest) short(half int) string {
	middle := len(textFormats) / 2
	return strings.Join(n.texts([][]func(string) string{textFormats[:middle], textFormats[middle:]}[half]), "\n")
}

// json is an object with all formats, and a secret under each of some more keys.
func (n *nest) json(keys ...string) string {
	object := make(map[string]any)
	for i, format := range jsonFormats {
		object[fmt.Sprint("json", i)] = format(n.hatch())
	}
	object["texts"] = n.texts(textFormats)
	for _, key := range keys {
		object[key] = n.hatch()
	}
	text, err := json.Marshal(object)
	if err != nil {
		panic(err)
	}
	return string(text)
}

// found are the secrets that stand in something.
func (n *nest) found(text string) []string {
	text = strings.ToLower(text)
	var out []string
	for _, bird := range n.birds {
		if strings.Contains(text, bird) {
			out = append(out, bird)
		}
	}
	return out
}
