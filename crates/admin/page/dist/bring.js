// A provider has sent somebody here with a token (POST /api/login): it is this tab's from now on, and the page begins.
const { content } = document.querySelector('meta[name="access-token"]');
sessionStorage.setItem("leveret.credentials", `Bearer ${content}`);
sessionStorage.removeItem("leveret.renewal");
location.replace("../");
